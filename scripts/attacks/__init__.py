"""Attacks on the service and their measurement, behind `scripts/attack.py`."""
