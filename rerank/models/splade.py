"""Loads SPLADE models with their prompts, and checks weights and vocabularies. No code of a folder is run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from rerank.checkpoints.bundled import SPLADE_TINY
from rerank.checkpoints.load_errors import check_complete, loading
from rerank.checkpoints.settings_files import architecture_in, check_settings, read_settings, refuse_code
from rerank.errors import CheckpointError
from rerank.models.encoder_loading import Prompts, resolve_prompts
from rerank.models.loading import readable_positions
from rerank.models.memory import keep_in_memory
from rerank.util.files import missing_path_hint

#: Weights of masked language models that the logits do not depend on.
_NOT_READ_BY_SPLADE = r"((\w+\.)?pooler\.|cls\.seq_relationship\.|(.*\.)?position_ids$)"
#: A tokenizer must have at least this share of the model's terms: some models round the number of terms up.
_KNOWN_SHARE = 0.9
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_SPLADE_HEAD = "ForMaskedLM"


@dataclass(frozen=True)
class SpladeModel:
    """A loaded SPLADE model.

    Attributes:
        library: the whole model of sentence-transformers, which encodes queries.
        model: the masked language model that reads passages.
        decoder: the layer of `model` that multiplies token states with the vocabulary.
        tokenizer: the tokenizer of passages.
        pooling: pooling of the logits of passages over their tokens.
        prompts: texts in front of queries and of passages.
        max_tokens: the longest passage, in tokens.
    """

    library: SparseEncoder
    model: PreTrainedModel
    decoder: nn.Linear
    tokenizer: PreTrainedTokenizerBase
    pooling: SpladePooling
    prompts: Prompts
    max_tokens: int


def load_splade(folder: Path, device: torch.device) -> SpladeModel:
    """Loads the SPLADE model of a folder; no code of the folder is run.

    Raises:
        CheckpointError: the folder holds no SPLADE model, or the model is incomplete or of an unsupported kind.
    """
    transformer_folders = _check_splade_files(folder)
    transformers_logging.disable_progress_bar()
    with loading("sparse encoder", folder):
        _check_splade_weights(transformer_folders)
        library = SparseEncoder(str(folder), device=str(device), local_files_only=True, trust_remote_code=False)
        keep_in_memory(library.eval().requires_grad_(False))
        _check_splade_settings(folder, library)
        transformer, pooling = _document_modules(folder, library)
        model = cast(PreTrainedModel, transformer.auto_model)
        for name, weight in library.named_parameters():
            if not bool(weight.isfinite().all()):
                raise CheckpointError(f"{folder}: the weight {name} has numbers that are not finite; copy it again")
        decoder = _decoder(folder, model)
        _check_vocabularies(folder, library, decoder.out_features)
        max_tokens = readable_positions(model, transformer.max_seq_length or 0)
        prompts = resolve_prompts(folder, library.prompts)
        return SpladeModel(library, model, decoder, transformer.tokenizer, pooling, prompts, max_tokens)


def _check_splade_settings(folder: Path, library: SparseEncoder) -> None:
    """Raises: CheckpointError if scores are not the dot product of all terms."""
    found = {"max_active_dims": library.max_active_dims, "similarity_fn_name": library.similarity_fn_name}
    for (name, value), expected in zip(found.items(), (None, "dot"), strict=True):
        if value != expected:
            raise CheckpointError(
                f"{folder}: {name} is {value}, and passages are scored by the dot product of all their terms; set "
                f"{name} to {'null' if expected is None else expected} in config_sentence_transformers.json"
            )


def _document_modules(folder: Path, library: SparseEncoder) -> tuple[Any, SpladePooling]:
    """Returns the two modules that encode passages. Raises: CheckpointError if there are others."""
    modules: list[nn.Module] = list(library)
    if isinstance(modules[0], Router) and "document" in modules[0].sub_modules:
        modules = [*cast(Any, modules[0].sub_modules["document"]), *modules[1:]]
    if len(modules) != 2 or not isinstance(modules[0], Transformer) or not isinstance(modules[1], SpladePooling):
        names = ", ".join(type(module).__name__ for module in modules)
        raise CheckpointError(
            f"{folder} encodes passages by the modules {names}; use a SPLADE model, which has Transformer and "
            "SpladePooling"
        )
    return modules[0], modules[1]


def _decoder(folder: Path, model: PreTrainedModel) -> nn.Linear:
    decoder = model.get_output_embeddings()
    if not isinstance(decoder, nn.Linear):
        raise CheckpointError(
            f"{folder}: {type(model).__name__} gives its logits by {type(decoder).__name__} instead of a linear layer; "
            "use a SPLADE model of BERT's family"
        )
    return decoder


def _check_splade_weights(transformer_folders: Iterable[Path]) -> None:
    """Raises: CheckpointError if weights are missing, unknown, or of another shape."""
    for transformer_folder in transformer_folders:  # on the device `meta`, only the names of the weights are read
        _, info = cast(Any, AutoModelForMaskedLM).from_pretrained(
            transformer_folder,
            device_map="meta",
            ignore_mismatched_sizes=True,  # `check_complete` names them
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        check_complete(transformer_folder, info, _NOT_READ_BY_SPLADE, _NOT_READ_BY_SPLADE)


def _check_vocabularies(folder: Path, library: SparseEncoder, size: int) -> None:
    """Raises: CheckpointError if a tokenizer, or the table of the queries, has another number of terms."""
    for module in library.modules():
        if isinstance(module, SparseStaticEmbedding) and module.num_dimensions != size:
            raise CheckpointError(
                f"{folder}: the table of the queries has {module.num_dimensions} terms, but the model of the "
                f"passages {size}; use the two that were trained together"
            )
        if isinstance(module, SparseStaticEmbedding | Transformer):
            terms = max(cast(Any, module).tokenizer.get_vocab().values(), default=-1) + 1
            if not _KNOWN_SHARE * size <= terms <= size:
                raise CheckpointError(
                    f"{folder}: the vocabulary has {terms} terms, but the model {size}; copy the tokenizer.json that "
                    "was published with the model"
                )


def _check_splade_files(folder: Path) -> list[Path]:
    """Checks that a folder holds a SPLADE model that needs no code of its publisher, without loading it.

    Returns the folders of the model's transformers: `folder` itself, or a subfolder for each kind of text.
    """
    if not folder.is_dir():
        hint = missing_path_hint(folder)
        raise CheckpointError(
            f"there is no folder {folder}{hint}; give the folder of a sparse encoder, or {SPLADE_TINY}"
        )
    configs = {path: read_settings(path) for part in check_settings(folder) if (path := part / "config.json").is_file()}
    transformers = {path: config for path, config in configs.items() if "architectures" in config}
    if not transformers:
        raise CheckpointError(f"{folder} has no config.json of a transformer; give the folder of a sparse encoder")
    for path, config in transformers.items():
        refuse_code(path, config, "sparse encoder")
        architecture = architecture_in(config)
        if not architecture.endswith(_SPLADE_HEAD):
            raise CheckpointError(
                f"{path} names {architecture or 'no architecture'}, which gives no weights of terms: they would come "
                f"from random numbers; use a SPLADE model (…{_SPLADE_HEAD}), and give a dense encoder as `encoder`"
            )
        if not any(any(path.parent.glob(pattern)) for pattern in _TOKENIZER_FILES):
            raise CheckpointError(
                f"{path.parent} has no vocabulary ({' or '.join(_TOKENIZER_FILES)}); copy the whole folder of the model"
            )
    return [path.parent for path in transformers]
