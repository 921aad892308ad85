"""The one gradient path: flat buckets whose parameters keep their names."""
