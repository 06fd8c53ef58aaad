"""Trials of the service's reliability, behind `scripts/trial.py`."""
