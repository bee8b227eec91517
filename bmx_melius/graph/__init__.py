"""Networks as graphs: the nodes, and their reading from networks of MXNet."""
