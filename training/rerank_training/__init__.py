"""Training jobs. They import `rerank`; neither `rerank` nor `rerank_eval` imports them.

The modules in this folder are the commands. `lists` makes what they train on, `trainer` is the loop that they share,
and `first`, `pe_rank` and `retriever` hold what each training needs for its model.
"""
