"""Evaluation of rankers and retrievers. It imports `rerank`; neither `rerank` nor `rerank_training` imports it."""

from importlib.util import find_spec

if missing := [name for name in ("ir_measures", "scipy") if find_spec(name) is None]:
    raise ModuleNotFoundError(f"evaluation needs {' and '.join(missing)}; install rerank[eval]", name=missing[0])
