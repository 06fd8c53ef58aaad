"""Evaluation. It imports `rerank`; `rerank` never imports it, and neither does `training`."""
