"""English: inflection and the order of words."""
