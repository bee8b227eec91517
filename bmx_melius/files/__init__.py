"""Files: atomic output, parameters, symbols, exported networks."""
