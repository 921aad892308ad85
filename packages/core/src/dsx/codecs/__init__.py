"""Numbers in fewer bytes, for the wire."""
