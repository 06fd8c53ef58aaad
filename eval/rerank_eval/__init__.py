"""Evaluation of rankers and retrievers. It imports `rerank`; neither `rerank` nor `rerank_training` imports it."""
