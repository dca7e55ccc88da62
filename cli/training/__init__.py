"""`lm train`."""
