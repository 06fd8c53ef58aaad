"""Optional parts that no other module imports: each can be deleted with its tests and its entry points."""
