"""PyTerrier: a transformer that reranks the results of a pipeline. Needs the extra `pyterrier`."""

from rerank.integrations.pyterrier.transformer import RerankTransformer as RerankTransformer
