"""The lexicon as data: every word of both languages with what cannot be derived by rule."""
