"""Training: configuration from flags (`flags`, `config`, `presets`), construction of a run (`run`), and the training loop (`loop`).

Networks are passed in by the caller; data, distributed training and reporting are separate packages.
"""
