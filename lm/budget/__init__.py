"""A time instead of a number of steps: how large a model it is enough for, how fast the run goes, when it ends."""
