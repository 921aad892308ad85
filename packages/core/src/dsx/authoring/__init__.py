"""What a plugin author calls from a shell: a new package from a template, and a check of any plugin."""
