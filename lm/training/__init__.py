"""Training: schedules, optimizers, and the loop that yields what happens."""
