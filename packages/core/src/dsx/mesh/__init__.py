"""Which process this is, and the axes along which processes divide the work."""
