"""Series of training runs, one after the other: the stages of a preset, and the members of an ensemble."""
