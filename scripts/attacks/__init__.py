"""Attacks on a running service, and what other callers notice of them (`python -m scripts.attacks`)."""
