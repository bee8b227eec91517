"""Options of a training run: flags, files with flags, defaults that depend on other flags, and checks."""
