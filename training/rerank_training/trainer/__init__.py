"""The training loop that all three trainings share: arguments, losses, metric, saves, and the resulting checkpoint."""
