"""Commands of the command line. Each command is a module: ``add_parser`` declares its arguments, ``run`` executes it.

``run(arguments, output)`` writes its results, and only these, to the stream `output`. Commands import what they need in ``run``, so that
help texts and argument errors do not wait for MXNet or GluonCV. This is the only part of the library that imports `model_zoo`.

Modules that are not commands:

``options``            options that several commands share, and their values
``image_options``      options of predict and evaluate for preprocessing and class names
``mxnet_networks``     classifiers of predict and evaluate that MXNet runs
``evaluation_report``  output of evaluate
"""
