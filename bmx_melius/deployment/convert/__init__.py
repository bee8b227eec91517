"""Conversion of an exported graph into programs: partition, lowering by rules, folded thresholds, verification against MXNet.

`conversion` is the entry for files and live blocks; `packing` lists the steps.
"""
