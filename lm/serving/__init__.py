"""HTTP server: an OpenAI-compatible API, and inspection of models."""
