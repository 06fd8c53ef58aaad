"""Prompts: templates, identifiers and sanitised text, rendered to token ids."""
