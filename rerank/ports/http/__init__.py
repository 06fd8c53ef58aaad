"""The HTTP port: the reranking APIs of other services, and JSON forms of the gRPC methods Rerank and Search."""
