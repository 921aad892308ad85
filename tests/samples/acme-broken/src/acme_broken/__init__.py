"""A plugin that is broken in eight ways at once; plugin.py numbers them."""
