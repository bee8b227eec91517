"""Reading a network: its graph with marks and shapes, counts, a check of its training pass, its drawing, the plot of a confusion matrix.

These modules know a network by its traced or exported graph, not by the layers that made it. `bmx_melius.summary` and
`bmx_melius.check` are functions of the modules `summary` and `checking`.
"""
