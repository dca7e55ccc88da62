"""`lm perplexity`: `perplexity` is the command, `report` scores and prints, `surprisal` draws text by surprisal."""
