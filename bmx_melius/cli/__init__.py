"""The commands of the command line, one module each: ``add_parser`` says what a command takes, ``run`` does it.

``run(arguments, output)`` writes its results to the stream `output`, and nothing else. Commands import what they need when they run:
help and mistyped arguments wait for nothing but the package itself, neither for GluonCV nor for drawing. This is the one part of the
library that imports `model_zoo`, the networks by name.
"""
