"""Distillation of a ranker into the encoder of an index (`distill-retriever`)."""
