"""Readers of what people give: candidates, requests, queries and relevance judgements, in their usual forms."""
