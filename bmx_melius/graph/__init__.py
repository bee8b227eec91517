"""Networks as graphs: nodes with typed operations, and their reading from networks of MXNet."""
