"""`lm translate`."""
