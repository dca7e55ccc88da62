"""From text to tokens: tokenizers, documents, and shards of tokens on disk."""
