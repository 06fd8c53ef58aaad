"""The JSON forms of reranking APIs: one module each, and the table of the paths that take them."""
