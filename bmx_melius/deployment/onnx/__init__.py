"""ONNX: export of packed programs, and import of models.

Import: `trial` does the first steps in a process with limits. `model` reads a file, with `qonnx` and `forms` for what files have in several
forms, and with `other_formats` for files that are not models. `batches` cuts a batch to one image, `evaluation` computes the values, and
`factors`, `merging`, `layout` and `ties` rewrite the model. `recognition` finds what is binary, `exact_sums` signs of sums of integers,
`moves` what only moves elements, `axis_maps` what resizes and pads. `translation`, `layers` and `normalization` translate the operators for
the converter, `network` answers the converter's questions, `conversion` is the entry.

Export: `export` makes a model, `qonnx_export` one of QONNX; `stored_programs` keeps programs with 8-bit layers in it, which `reading_back`
imports.
"""
