"""The code that goes with a model that transformers does not have: copied into its folder, and never imported here."""
