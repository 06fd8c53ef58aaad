"""Runs many requests over few models: batcher (pure), job (one request), engine (the loop)."""
