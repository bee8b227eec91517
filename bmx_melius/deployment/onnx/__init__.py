"""ONNX: export of packed programs, and import of models.

Import: `model` reads a file, `evaluation` computes its values, `recognition` finds what is binary, `moves` finds what only moves elements,
`translation`, `layers` and `normalization` make its operators those of the converter, `network` answers the converter's questions,
`conversion` is the entry.
"""
