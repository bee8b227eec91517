"""Records of a training run for its user: settings and environment, metrics, plots, flips of binary weights, TensorBoard scalars.

When one of these files cannot be written, training continues with a warning.
"""
