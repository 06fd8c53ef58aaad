"""The reranker: loads the models, chooses the model of a request, and returns its ranking."""
