"""rerank: listwise LLM reranking, as a gRPC service and in process."""

from importlib.metadata import version

__version__ = version("rerank")
