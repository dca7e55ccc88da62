"""Engines: what computes logits for given tokens, rows, positions and cache; and which one is selected."""
