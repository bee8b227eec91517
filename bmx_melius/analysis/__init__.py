"""Reading a network: its graph with marks and shapes, counts of its operations, its drawing, and the plot of a confusion matrix.

These modules know a network by its traced or exported graph, not by the layers that made it. `bmx_melius.summary` is the function
`bmx_melius.analysis.summary.summary`.
"""
