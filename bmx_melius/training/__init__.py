"""Training: options of a run (`options`), its construction (`run`), and the training loop (`loop`).

Networks are passed in by the caller; data, distributed training and reporting are separate packages.
"""
