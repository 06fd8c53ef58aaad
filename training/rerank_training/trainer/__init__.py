"""The training loop that all trainings share: arguments, losses, metric, saves, and the resulting checkpoint."""
