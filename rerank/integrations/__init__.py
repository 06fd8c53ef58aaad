"""Parts at the edge, which nothing else names: each can be deleted with its tests and its entry points."""
