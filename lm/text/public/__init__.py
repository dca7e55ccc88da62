"""Public corpora: the catalogue, download and verification."""
