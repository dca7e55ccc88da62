"""Public corpora: what there is, and fetching it."""
