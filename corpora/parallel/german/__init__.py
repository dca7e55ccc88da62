"""German: declension, conjugation and the order of words."""
