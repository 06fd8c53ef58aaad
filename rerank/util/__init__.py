"""Files, JSON, YAML and tables: what has nothing to do with ranking."""
