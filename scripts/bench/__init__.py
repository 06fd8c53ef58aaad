"""Measurements behind `scripts/bench_engine.py`."""
