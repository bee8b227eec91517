"""What a training run writes for its user: settings and environment, metrics, plots, flips of binary weights, TensorBoard scalars.

No run ends because one of these files cannot be written.
"""
