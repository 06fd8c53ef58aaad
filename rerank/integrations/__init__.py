"""Adapters for other systems, each with an extra of its own: PyTerrier."""
