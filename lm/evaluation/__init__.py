"""Measuring models: perplexity of text."""
