"""Training: from flags to a configuration (`flags`, `config`, `presets`), from a configuration to a run (`run`), and the loop (`loop`).

Networks come from the caller; data, worker processes and reporting are packages of their own.
"""
