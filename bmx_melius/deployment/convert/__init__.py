"""Conversion of an exported graph into programs: partitioning, lowering, threshold folding and verification against MXNet.

`conversion` is the entry point for files and live blocks; `packing` lists the steps.
"""
