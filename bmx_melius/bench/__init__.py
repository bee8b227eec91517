"""Benchmarks of packed networks: latency of each step, and comparison with other libraries.

``networks``     default benchmark networks: a network of the zoo with random weights, a single binary layer
``latency``      timing in this process: the measured peaks of the machine, the whole network and its steps
``rows``         rows of a comparison: a peer, its arguments, number of threads and environment
``peers``        the libraries compared, one per file
``float_forms``  optimized forms of the float network in MXNet
``worker``       the process that runs one row; ``rounds`` schedules the workers in turns; ``comparison`` combines them
``figures``      ratios computed from the measurements; ``report`` formats everything as tables
"""
