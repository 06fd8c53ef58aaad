"""Checks the files of a cross-encoder without loading the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rerank.checkpoints.settings_files import (
    architecture_in,
    check_settings,
    read_modules,
    read_settings,
    refuse_code,
)
from rerank.errors import CheckpointError
from rerank.util.files import looked_for

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")
_WEIGHTS = ("*.safetensors", "*.bin")
_HEAD, _CAUSAL = "ForSequenceClassification", "ForCausalLM"


def is_cross_encoder(folder: Path) -> bool:
    """Returns True if the files of a folder say that it is a cross-encoder, or that it has the head of one."""
    if (folder / "config_sentence_transformers.json").is_file() or (folder / "modules.json").is_file():
        return _kind(folder) == "CrossEncoder"
    return (folder / "config.json").is_file() and architecture_in(read_settings(folder / "config.json")).endswith(_HEAD)


def check_cross_encoder(folder: Path) -> None:
    """Checks that a folder holds a whole cross-encoder that needs no code of its publisher.

    Raises:
        CheckpointError: a file is missing, the model has no head for one score, it is a sentence encoder, or its
            files name code.
    """
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}{looked_for(folder)}; give the folder of a cross-encoder")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json; give the folder of a cross-encoder")
    check_settings(folder)
    config, modules = read_settings(folder / "config.json"), read_modules(folder)
    refuse_code(folder, config)
    if modules and _kind(folder) != "CrossEncoder":
        raise CheckpointError(
            f"{folder} is a sentence encoder (bi-encoder), which gives vectors and no scores of pairs; give it as "
            "`encoder`, and the folder of a cross-encoder here"
        )
    _check_head(folder, config, modules)
    for patterns, what in ((_WEIGHTS, "weights"), (_TOKENIZER_FILES, "tokenizer")):
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise CheckpointError(f"{folder} has no {what} ({' or '.join(patterns)}); copy the checkpoint again")


def is_causal_without_modules(folder: Path) -> bool:
    """Returns True for a causal LM whose files do not say which tokens are its answers; "yes" and "no" are assumed."""
    return not read_modules(folder) and architecture_in(read_settings(folder / "config.json")).endswith(_CAUSAL)


def _check_head(folder: Path, config: Mapping[str, Any], modules: list[dict[str, Any]]) -> None:
    architecture = architecture_in(config)
    if architecture.endswith(_HEAD):
        labels = len(config.get("id2label") or (0, 1))  # two are the default of transformers, which is not written
        if labels != 1:
            raise CheckpointError(
                f"{folder} has a head for {labels} labels; a reranker has one. Models of entailment or of classes "
                "cannot rank; use a cross-encoder that was trained with num_labels=1"
            )
    elif len(modules) < 2 and not architecture.endswith(_CAUSAL):
        raise CheckpointError(
            f"{folder} is {architecture or 'a model without an architecture'}, which has no head for scores: they "
            "would come from random weights; use a cross-encoder (…ForSequenceClassification, or a causal LM)"
        )


def _kind(folder: Path) -> str:
    """Returns the class of sentence-transformers that saved the folder; files of earlier versions name none."""
    settings = read_settings(folder / "config_sentence_transformers.json")
    return str(settings.get("model_type", "SentenceTransformer"))
