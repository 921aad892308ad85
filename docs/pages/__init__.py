"""The generated pages, one file a page; ``docs/generate.py`` writes or compares them."""
