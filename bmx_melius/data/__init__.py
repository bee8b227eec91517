"""Images to train and to evaluate on: datasets as rows, sources of batches, labelled images, augmentation, and im2rec packing.

`opening` finds what flags or a name ask for; `source` says what a source of training data offers. Nothing here knows of training.
"""
