"""Other toolkits: models and tokenizers out of lm, and in."""
