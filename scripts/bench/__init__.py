"""Benchmarks: of the engine and the service (`python -m scripts.bench`), indexes and inference servers."""
