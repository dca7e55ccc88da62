"""`lm generate`."""
