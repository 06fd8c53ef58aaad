"""Checks the files of a late-interaction model without loading it."""

from __future__ import annotations

from pathlib import Path

from rerank.checkpoints.settings_files import architecture_in, check_settings, read_modules, read_settings, refuse_code
from rerank.errors import CheckpointError

#: The file of a ColBERT checkpoint with the maximum lengths of its texts and its special tokens.
_COLBERT_FILE = "artifact.metadata"
#: The architecture in the config.json of a ColBERT checkpoint.
_COLBERT = "HF_ColBERT"


def is_late_interaction(folder: Path) -> bool:
    """Returns True if a folder holds a late-interaction model of ColBERT, PyLate or sentence-transformers."""
    settings = read_settings(folder / "config_sentence_transformers.json")
    stated = settings.get("model_type") == "MultiVectorEncoder" or settings.get("similarity_fn_name") == "MaxSim"
    by_pylate = any(str(module.get("type", "")).startswith("pylate.") for module in read_modules(folder))
    return stated or by_pylate or architecture_in(read_settings(folder / "config.json")) == _COLBERT


def check_late_interaction(folder: Path) -> None:
    """Checks that a folder holds a late-interaction model that needs no code of its publisher.

    Raises:
        CheckpointError: the folder holds another model, needs code, or lacks the file with ColBERT's lengths.
    """
    check_settings(folder)
    if not is_late_interaction(folder):
        raise CheckpointError(
            f"{folder} is no late-interaction model: it is neither ColBERT's, nor saved by PyLate or MultiVectorEncoder"
        )
    config = read_settings(folder / "config.json")
    if architecture_in(config) == _COLBERT and not (folder / _COLBERT_FILE).is_file():
        raise CheckpointError(f"{folder} has no {_COLBERT_FILE}, which states its lengths; copy the checkpoint again")
    refuse_code(folder, config)
