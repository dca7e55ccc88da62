"""`lm attention`."""
