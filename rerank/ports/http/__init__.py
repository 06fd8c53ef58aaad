"""The HTTP port: the reranking APIs of Cohere, Jina and TEI, and JSON forms of the gRPC methods Rerank and Search."""
