"""The libraries of a comparison, one a file. Each file stands alone: `bmx_melius.bench.worker` loads it by its path.

A peer has

``PACKAGES``
    What must be installed: the name to import -> the name to install.
``prepare(arguments, array, threads)``
    A function without arguments that runs once and waits for the result, and a dict of facts for the report. `array` is the input,
    float32 in MXNet's layout (N, C, H, W); what a library wants differently is changed here, before the time counts. Weights are
    random and nothing is downloaded. Libraries are imported here and nowhere else.
"""
