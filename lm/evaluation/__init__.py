"""Measuring models: perplexity and surprisal of text, scores of translations, attention, and comparisons of two."""
