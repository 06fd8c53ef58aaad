"""Readers of candidates, requests, queries and relevance judgements in their usual forms."""
