"""Decoding: steps through a model, samplers, and the loop that generates."""
