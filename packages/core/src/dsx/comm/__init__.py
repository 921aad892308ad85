"""Collectives with a deadline, a sequence number, a call site and an account; the hang report."""
