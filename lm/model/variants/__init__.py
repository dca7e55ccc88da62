"""Variants of the transformer from the literature, one module each; none is needed to read the others."""
