"""Training and evaluation data: the table of datasets, sources of batches, labelled images, augmentation, and im2rec packing.

`opening` opens the data that flags or a name select; `source` defines the interface of a source of batches. This package does not depend on
`bmx_melius.training`.
"""
