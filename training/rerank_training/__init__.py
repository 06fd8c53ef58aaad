"""Training jobs. They import `rerank`; `rerank` never imports them, and neither does `eval`."""
