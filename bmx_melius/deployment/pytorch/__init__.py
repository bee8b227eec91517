"""Import of networks of PyTorch, through ONNX.

`modules` copies a module for inference and calls it, `exporting` writes an ONNX model of the copy, `checkpoints` reads weights,
`comparison` compares the packed network with the module, `conversion` is the entry. `package` imports PyTorch.
"""
