"""Running text as windows of tokens."""
