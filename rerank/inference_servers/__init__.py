"""Inference servers that run the model of a ranker: their HTTP APIs, calls with retries, and their health."""
