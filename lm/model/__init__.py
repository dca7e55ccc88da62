"""The transformer: masks, attention, positions, the one block, and the two models stacked from it."""
