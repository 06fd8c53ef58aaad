"""Benchmarks of the rankers, and of two checkouts of the service (`python -m scripts.bench`)."""
