"""`lm perplexity`."""
