"""Runs as GGUF files, which llama.cpp reads, and what is built on it."""
