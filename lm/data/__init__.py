"""Text to batches: what every kind of training data shares."""
