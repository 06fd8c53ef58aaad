"""Benchmarks of the rankers, the engine and the service (`python -m scripts.bench`), and of two checkouts."""
