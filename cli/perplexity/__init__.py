"""`lm perplexity`: options, scoring of files and pairs, and reports. Start with `perplexity`."""
