"""`lm generate` and `lm chat`: `generating` writes samples, and `session` takes turns for both."""
