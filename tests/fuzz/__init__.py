"""Fuzzers: `make fuzz`, or tests/test_fuzz.py for a short form of them."""
