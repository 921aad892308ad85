"""dsx beside its peers, measured in one run: `python -m benchmarks NAME… [--short] [--json FILE]`."""
