"""Checks the files of a cross-encoder without loading the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rerank.checkpoints.late_interaction_files import is_late_interaction
from rerank.checkpoints.published_families import native_settings, other_architecture_hint
from rerank.checkpoints.settings_files import (
    ADAPTER_FILE,
    architecture_in,
    base_folder,
    check_settings,
    object_at,
    read_modules,
    read_settings,
    refuse_code,
)
from rerank.errors import CheckpointError
from rerank.profiles import load_profile, of_model_type
from rerank.util.files import missing_path_hint

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
        raise CheckpointError(
            f"there is no folder {folder}{missing_path_hint(folder)}; give the folder of a cross-encoder"
        )
    check_settings(folder)
    base, modules = base_folder(folder), read_modules(folder)
    if not (base / "config.json").is_file():
        raise CheckpointError(f"{base} has no config.json; give the folder of a cross-encoder")
    config = read_settings(base / "config.json")
    config = native_settings(config) or config
    if reason := other_architecture_hint(config):
        raise CheckpointError(f"{folder} is {reason.replace('FOLDER', f'{folder}')}")
    refuse_code(base, config)
    if is_late_interaction(folder):
        raise CheckpointError(f"{folder} is a late-interaction model; write late-interaction:{folder}")
    if modules and _kind(folder) != "CrossEncoder":
        raise CheckpointError(
            f"{folder} is a sentence encoder (bi-encoder), which gives vectors and no scores of pairs; give it as "
            "`encoder`, and the folder of a cross-encoder here"
        )
    if not read_settings(folder / ADAPTER_FILE).get("modules_to_save"):  # the adapter may hold the head
        _check_head(base, config, modules)
    for patterns, what in ((_WEIGHTS, "weights"), (_TOKENIZER_FILES, "tokenizer")):
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise CheckpointError(f"{folder} has no {what} ({' or '.join(patterns)}); copy the checkpoint again")


def profile_hint(folder: Path, model_type: str) -> str:
    """Returns the advice to use a profile for models of this type, for an error; empty if no profile has a prompt."""
    known = [name for name in of_model_type(model_type) if load_profile(name).pair]
    return f"write PROFILE:{folder} with the profile of the model ({', '.join(known)}), " if known else ""


def relevant_label(folder: Path, config: Mapping[str, Any]) -> int | None:
    """Returns the label of a two-label classifier that means "relevant", 0 or 1; None for a model with one label.

    monoBERT (Nogueira et al., arXiv 1910.14424) and its like have two.

    Raises:
        CheckpointError: the model has more than two labels, or `id2label` calls neither of the two "relevant".
    """
    names = object_at(config, "id2label")
    stated = config.get("num_labels")
    labels = len(names) or (stated if isinstance(stated, int) else 2)  # transformers does not write its default
    if labels == 1:
        return None
    found = [label for label, name in enumerate(names.values()) if f"{name}".lower() == "relevant"]
    if labels == 2 and len(found) == 1:
        return found[0]
    if labels == 2:
        raise CheckpointError(
            f"{folder} has a head for two labels ({', '.join(map(str, names.values())) or 'without names'}), and does "
            'not say which of them means relevant; if it is label 1, as in monoBERT, write "id2label": {"0": '
            '"irrelevant", "1": "relevant"} into its config.json'
        )
    raise CheckpointError(
        f"{folder} has a head for {labels} labels; a reranker has one label, or two with one named relevant. Models "
        "of entailment or of classes cannot rank; use a cross-encoder that was trained with num_labels=1"
    )


def _check_head(folder: Path, config: Mapping[str, Any], modules: list[dict[str, Any]]) -> None:
    architecture = architecture_in(config)
    if architecture.endswith(_HEAD):
        relevant_label(folder, config)
    elif architecture.endswith(_CAUSAL) and not modules:
        raise CheckpointError(
            f"{folder} is a causal LM, and no modules.json says in which prompt it reads query and passage, and which "
            f"tokens are its answers; {profile_hint(folder, str(config.get('model_type', '')))}save it with "
            "CrossEncoder and a LogitScore, or serve it as `first` or `generation`"
        )
    elif len(modules) < 2:
        raise CheckpointError(
            f"{folder} is {architecture or 'a model without an architecture'}, which has no head for scores: they "
            "would come from random weights; use a cross-encoder (…ForSequenceClassification, or a causal LM)"
        )


def _kind(folder: Path) -> str:
    """Returns the class of sentence-transformers that saved the folder; files of earlier versions name none."""
    settings = read_settings(folder / "config_sentence_transformers.json")
    return str(settings.get("model_type", "SentenceTransformer"))
