"""What a training run writes to be read back: checkpoints with checksums, the state of the optimizer, and the exported network.

A lock keeps a second process out of the folder.
"""
