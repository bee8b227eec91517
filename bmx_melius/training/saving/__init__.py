"""Saved state of a training run: checkpoints with checksums, the state of the optimizer, and the exported network.

A lock prevents two processes from training in the same folder.
"""
