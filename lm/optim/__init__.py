"""Steps on weights: optimizers, schedules, averages."""
