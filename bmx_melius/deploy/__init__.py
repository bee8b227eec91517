"""Everything after training: from an exported graph to a packed program, and running it."""
