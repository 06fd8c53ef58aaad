"""Converts checkpoints whose config.json names code of their publisher to classes that are known here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file

from rerank.checkpoints.published_families import native_settings
from rerank.checkpoints.settings_files import read_settings
from rerank.checkpoints.weights import Weights, read_weights
from rerank.models import jina_bert, llama_bidirectional  # noqa: F401  (they register their classes)

#: Pairs: regular expression for a part of a weight's name in jina-reranker-v2, and that part in transformers.
_XLM_ROBERTA_NAMES = (
    (r"\.emb_ln\.", ".embeddings.LayerNorm."),
    (r"\.encoder\.layers\.", ".encoder.layer."),
    (r"\.mixer\.out_proj\.", ".attention.output.dense."),
    (r"\.norm1\.", ".attention.output.LayerNorm."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
    (r"\.norm2\.", ".output.LayerNorm."),
)
#: The weight that holds query, key and value of a layer, which transformers has as three weights.
_PACKED = ".mixer.Wqkv."
_WEIGHT_FILES = re.compile(r"(model|pytorch_model).*\.(safetensors|bin|index\.json)")


@contextmanager
def native_folder(folder: Path) -> Iterator[Path]:
    """Yields the folder, or a temporary one with config.json and weights in the form of a known class.

    Raises:
        CheckpointError: see `native_settings` and `read_weights`.
    """
    native = native_settings(read_settings(folder / "config.json"))
    if native is None:
        yield folder
        return
    with TemporaryDirectory() as temporary:
        out = Path(temporary)
        renames = native["model_type"] == "xlm-roberta"
        for path in folder.resolve().iterdir():
            if path.name != "config.json" and not (renames and _WEIGHT_FILES.fullmatch(path.name)):
                (out / path.name).symlink_to(path.resolve())
        (out / "config.json").write_text(json.dumps(native), encoding="utf-8")
        if renames:
            save_file(xlm_roberta_weights(read_weights(folder)), out / "model.safetensors", {"format": "pt"})
        yield out


def xlm_roberta_weights(weights: Mapping[str, Any]) -> Weights:
    """Renames the weights of jina-reranker-v2 to those of transformers' XLM-RoBERTa."""
    named = Weights()
    for published, tensor in weights.items():
        name = published
        for pattern, replacement in _XLM_ROBERTA_NAMES:
            name = re.sub(pattern, replacement, name)
        if _PACKED in name:
            parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
            named |= {name.replace(_PACKED, f".attention.self.{part}."): one.contiguous() for part, one in parts}
        else:
            named[name] = tensor.contiguous()
    return named
