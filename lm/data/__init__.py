"""Tokens on disk to batches: sample order, bucketing by length, padding, targets."""
