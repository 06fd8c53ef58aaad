"""Merges an adapter of peft into its base model, after checking that the base has all layers that it changes."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rerank.checkpoints.load_errors import check_complete, listed
from rerank.checkpoints.settings_files import ADAPTER_FILE, read_settings
from rerank.errors import CheckpointError

#: The prefix that peft puts before the names of the base model's weights.
PREFIX = "base_model.model."
#: peft adds both names to `modules_to_save` of a classifier, whether or not the base has such modules.
_HEADS = {"classifier", "score"}
_WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def merged(base: PreTrainedModel, folder: Path, task: str) -> PreTrainedModel:
    """Returns the base model of an adapter with the weights of the adapter; see `with_adapter`."""
    return cast(PreTrainedModel, with_adapter(base, folder, task).merge_and_unload())


def with_adapter(base: PreTrainedModel, folder: Path, task: str, is_trainable: bool = False) -> PeftModel:
    """Adds an adapter to its base model.

    Args:
        folder: folder of the adapter, with adapter_config.json and weights.
        task: peft's type of the task that the ranker serves. An adapter that states no task is accepted.
        is_trainable: whether the weights of the adapter are trained.

    Raises:
        CheckpointError: the adapter is for another task; or one of its weights is missing, belongs to no layer of the
            base, or does not have the shape for its layer.
    """
    if (stated := read_settings(folder / ADAPTER_FILE).get("task_type")) not in (None, task):
        raise CheckpointError(
            f"{folder} is an adapter for the task {stated}, and this ranker serves {task}; serve it with a ranker of "
            "its task, or train one for this ranker"
        )
    if any(isinstance(module, BaseTunerLayer) for module in base.modules()):
        raise CheckpointError(f"{folder} holds both a model and an adapter of it; move one of them, or merge the two")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = PeftConfig.from_pretrained(str(folder))
        _check_saved_modules(base, folder, cast(Any, config).to_dict().get("modules_to_save") or ())
        config.inference_mode = not is_trainable
        model = PeftModel(base, config)
        weights = _weights(folder)
        if missing := get_peft_model_state_dict(model, save_embedding_layers=False).keys() - weights.keys():
            raise CheckpointError(f"the adapter {folder} lacks the weights {_names(missing)}; copy it again")
        try:
            unknown = cast(Any, set_peft_model_state_dict(model, weights)).unexpected_keys
        except RuntimeError as error:  # of torch, which names the weights and their shapes
            raise _unfit(folder, f"has weights of other shapes than its base: {error}") from error
    if unknown:
        raise _unfit(folder, f"has weights for layers that its base lacks: {_names(unknown)}")
    return model


def _check_saved_modules(base: PreTrainedModel, folder: Path, names: Collection[str]) -> None:
    """Raises: CheckpointError if the base lacks a module that the adapter claims to hold as a whole."""
    known = {part for name, _ in base.named_modules() for part in (name, name.rpartition(".")[2])}
    if unknown := set(names) - known - _HEADS:
        raise _unfit(folder, f"has modules_to_save that its base lacks: {listed(sorted(unknown))}")


def complete_transformer(
    transformer: PreTrainedModel, folder: Path, task: str, may_have: str, may_lack: str = r"(?!)"
) -> PreTrainedModel:
    """Returns a transformer that sentence-transformers loaded from a folder, with the folder's adapter merged into it.

    Args:
        task: see `merged`.
        may_have, may_lack: see `check_complete`.

    Raises:
        CheckpointError: see `check_complete` and `merged`.
    """
    is_adapter = (folder / ADAPTER_FILE).is_file()
    source = str(transformer.name_or_path)
    where = {"dtype": transformer.dtype} if is_adapter else {"device_map": "meta"}  # only the names are read
    base, info = cast(Any, type(transformer)).from_pretrained(
        source, output_loading_info=True, local_files_only=True, config=transformer.config, **where
    )
    if not is_adapter:
        check_complete(folder, info, may_have, may_lack)
        return transformer
    of_adapter = {name.removeprefix(PREFIX) for name in _weights(folder)}
    check_complete(source, {**info, "missing_keys": set(info["missing_keys"]) - of_adapter}, may_have, may_lack)
    return cast(PreTrainedModel, cast(Any, merged(base, folder, task)).to(transformer.device))


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, folder: Path) -> None:
    """Raises: CheckpointError if an adapter's tokenizer has tokens that the base has no embedding for."""
    tokens = max(tokenizer.get_vocab().values(), default=-1) + 1
    rows = getattr(model.get_input_embeddings(), "num_embeddings", tokens)
    if tokens > rows:
        raise _unfit(folder, f"has a tokenizer of {tokens} tokens, and its base embeddings of {rows}")


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    if not any((folder / name).is_file() for name in _WEIGHT_FILES):  # peft would ask the hub
        raise CheckpointError(f"the adapter {folder} has no {' or '.join(_WEIGHT_FILES)}; copy it again")
    return dict(load_peft_weights(str(folder), device="cpu"))


def _names(keys: set[str] | list[str]) -> str:
    return listed(sorted(key.removeprefix(PREFIX) for key in keys))


def _unfit(folder: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"the adapter {folder} {' '.join(problem.split())[:500]}; set base_model_name_or_path in {ADAPTER_FILE} to the "
        "model that it was trained on, or merge the two by merge_and_unload of peft and serve the result"
    )
