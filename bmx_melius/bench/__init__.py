"""How fast a packed network is on this machine, step by step, and beside other libraries.

``networks``     what is timed where nothing is given: a network of the zoo with random weights, a single binary layer
``latency``      a packed network in this process: the machine's measured peaks, the whole network and its steps
``rows``         what a comparison measures: a peer, its arguments, its threads and environment
``peers``        one library a file
``float_forms``  what MXNet makes of the same network at its best
``worker``       a process that runs one row; ``rounds`` lets workers take turns; ``comparison`` is the whole
``figures``      the ratios that count; ``benchmark_report`` shows all as tables
"""
