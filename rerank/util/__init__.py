"""Helpers that other packages share: files, JSON, YAML, tables, sparse vectors, messages about many items."""
