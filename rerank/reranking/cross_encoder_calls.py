"""Arguments of sentence-transformers' `CrossEncoder`, which calls of `Reranker.rank` and `predict` may keep."""

from __future__ import annotations

from collections.abc import Mapping

#: They divide the work, say where it runs, or show it; scores do not depend on them.
WITHOUT_EFFECT = (
    "batch_size",
    "chunk_size",
    "convert_to_numpy",
    "device",
    "num_workers",
    "pool",
    "show_progress_bar",
)
#: They change what is returned, unless they are None or false.
_WITH_EFFECT = ("activation_fn", "apply_softmax", "convert_to_tensor", "prompt", "prompt_name")


def check_arguments(given: Mapping[str, object]) -> None:
    """Raises: TypeError for an argument that `CrossEncoder` does not have, or that would change what is returned."""
    for name, value in given.items():
        if name in _WITH_EFFECT and value:
            raise TypeError(f"{name} would change the result, which a Reranker does not do; leave it out")
        if name not in (*WITHOUT_EFFECT, *_WITH_EFFECT):
            raise TypeError(
                f"unexpected argument {name!r}; of CrossEncoder's, {', '.join(WITHOUT_EFFECT)} are accepted and ignored"
            )
