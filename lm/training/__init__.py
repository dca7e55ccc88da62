"""Training: runs that are planned, started, resumed and saved, and the loop that yields what happens."""
