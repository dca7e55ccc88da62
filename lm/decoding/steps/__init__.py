"""Models that are fed step by step: what sampling, search and scoring see of them."""
