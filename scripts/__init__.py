"""Programs for work on the project itself; they run in a checkout, from its root."""
