"""Peers: the libraries of a comparison, one per file.

A peer does not import other modules of this package when it is loaded, because `bmx_melius.bench.worker` loads it by its path. It defines

``PACKAGES``
    The required packages: import name -> name to install.
``prepare(arguments, array, threads)``
    Returns a function without arguments that runs the network once and waits for the result, and a dict of facts for the report.
    `array` is the float32 input in MXNet's layout (N, C, H, W); conversion to another layout is done here and not timed. Weights are
    random and nothing is downloaded. The library is imported only in this function.
"""
