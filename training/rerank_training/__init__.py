"""Training jobs. They import `rerank` and `rerank_eval`, which do not import them.

`commands` has the commands, `lists` builds the training lists, and `trainer` has the training loop of all models. Each
other folder has one training: its arguments, its batches and its loss.
"""
