"""Prompts with their completions."""
