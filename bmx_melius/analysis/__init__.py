"""Analysis of networks: graphs with marks and shapes, operation counts, checks of the training pass, drawings, evaluation.

The modules read the traced or exported graph of a network; they do not depend on the layers that created it. `bmx_melius.summary` and
`bmx_melius.check` are functions of the modules `summary` and `checking`.
"""
