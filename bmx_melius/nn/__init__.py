"""Layers and quantizers of binary neural networks, and the methods of other papers."""
