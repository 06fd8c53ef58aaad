"""Planted changes that the tests must find; see __main__.py."""
