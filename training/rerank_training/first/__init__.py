"""Training of FIRST rankers (`train-first`)."""
