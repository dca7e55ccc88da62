"""Decoding: steps through a model, sampling and search over them, and what generates and translates texts."""
