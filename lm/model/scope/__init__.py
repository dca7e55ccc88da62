"""What attention is given to see: masks, caches, positions, in one description."""
