"""Models in and out of the folders that Hugging Face's transformers reads and writes; it is not needed for either."""
