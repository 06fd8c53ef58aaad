"""Integrations: rerank as a part of other systems, each with an extra of its own: PyTerrier, MCP."""
