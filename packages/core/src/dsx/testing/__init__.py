"""What tests of dsx and of its plugins need: ranks, fake worlds, kernel conformance, leak checks, faults."""
