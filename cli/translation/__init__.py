"""`lm translate` and `lm evaluate`."""
