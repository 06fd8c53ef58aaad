"""Trials of the service under attack, faults, load and time (`python -m scripts.trials`)."""
