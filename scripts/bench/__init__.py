"""Benchmarks of the rankers, the engine and two checkouts of the service (`python -m scripts.bench`)."""
