"""The reranker: loads the models, chooses one for a request, and gives the order back."""
