"""Training jobs. They import `rerank` and `rerank_eval`, which do not import them.

`commands` has the commands, `lists` makes what they train on, and `trainer` is the loop that they share. The other
folders hold what each training needs for its model.
"""
