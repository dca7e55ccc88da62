"""A language-model toolkit: tokenizers, models, training, decoding and scoring. Prints nothing."""
