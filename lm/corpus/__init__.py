"""Text to tokens on disk: surveyed, split, tokenized, and written as shards that are found again."""
