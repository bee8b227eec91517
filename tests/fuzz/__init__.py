"""Fuzzers: `make fuzz`, or tests/fuzz/test_fuzz.py for a short form of them."""
