"""What a running service says of itself: log, metrics and traces."""
