"""Public corpora: which there are, and how they are fetched."""
