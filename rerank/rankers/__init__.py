"""Rankers: each orders the passages of one window with a model. They know nothing of strategies, queues or RPCs."""
