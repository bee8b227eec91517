"""Layers of other binary and low-bit methods, one method a file, each with its equation, its gradient and its source."""
