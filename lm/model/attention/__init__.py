"""Self- and cross-attention: of everything, and of patterns that leave most pairs out."""
