"""Loads PE-Rank checkpoints: this package's, which use the encoder's vocabulary, and those in the published layouts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rerank.checkpoints.load_errors import check_complete, loading
from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.checkpoints.settings_files import ADAPTER_FILE, read_settings
from rerank.checkpoints.weights import Weights, read_config, read_torch_file, read_weights, weight_files
from rerank.config import Precision
from rerank.errors import CheckpointError, ConfigError
from rerank.models.compiled_layers import set_up_gpu
from rerank.models.encoder import Encoder
from rerank.models.loading import check_findable, has_tokenizer, load_tokenizer_of
from rerank.models.memory import check_fits
from rerank.models.precision import hidden_size_of, weights_dtype
from rerank.models.projector import load_projector
from rerank.models.tokenizer import load_tokenizer
from rerank.prompting.templates import VECTOR_FIELDS, Template, load_template
from rerank.rankers.pe_adapter import PROJECTOR_FILE, adapter_base, read_adapted_weights
from rerank.util.files import start_hashing

#: Name of the input embeddings in published checkpoints.
TOKEN_EMBEDDINGS = "model.embed_tokens.weight"
#: Name of the vocabulary head in published checkpoints.
HEAD = "lm_head.weight"
#: Tensors of the encoder in published checkpoints; they are ignored, because the service loads the encoder itself.
ENCODER_PREFIX = "model.encoder."
#: Prefix of the tensors of a saved causal LM that belong to its transformer.
_TRANSFORMER_PREFIX = "model."
#: Name of the input embeddings inside the transformer.
_TOKEN_EMBEDDINGS = "embed_tokens.weight"
#: projector.up.weight, model.projector.0.weight, projector.weight, … → the name inside the projector.
_PROJECTOR = re.compile(r"(?:^|\.)projector\.((?:\w+\.)?(?:weight|bias))$")
_OTHER_PROMPT = (
    "{folder} states no prompt, so it is read with the words of template pe_rank_text, which it was not trained with: "
    "its published figures are not reached; give its publisher's prompt as `template`"
)
#: `one_step` scores all passages at once; `dynamic` chooses one passage after the other. See `rankers.pe_decode`.
Decoding: TypeAlias = Literal["one_step", "dynamic"]


@dataclass(frozen=True)
class PECheckpoint:
    """The parts of a PE-Rank checkpoint, loaded for inference."""

    transformer: PreTrainedModel
    #: Encoder space → model space.
    projector: nn.Module
    tokenizer: PreTrainedTokenizerBase
    template: Template
    #: True if the checkpoint has its own tokenizer and token embeddings; False if it uses the encoder's.
    own_vocabulary: bool
    #: The decoding that the checkpoint was trained for.
    decoding: Decoding
    #: The maximum number of positions that the model reads.
    context_tokens: int
    #: Computes the SHA-256 of the weight files.
    hashing: Future[str]
    #: Why the model may not give its published figures; empty if nothing is known to differ.
    warning: str = ""

    @property
    def revision(self) -> str:
        """SHA-256 of the weight files. Waits until they are read."""
        return self.hashing.result()


def load_pe_checkpoint(
    folder: Path, encoder: Encoder, device: torch.device, template: str | None, precision: Precision = "auto"
) -> PECheckpoint:
    """Loads a folder with config.json and weights in one of three layouts.

    This package's layout stores neither token embeddings nor a tokenizer, because they are the encoder's. The published
    layout (as in liuqi6777/pe-rank-mistral-jina) is a complete causal LM with its tokenizer and `model_type` "embed_…";
    its projector is among the weights or in projector.bin. In both, config.json names the encoder and the projector's
    type. The third layout is the published one after a training with LoRA, see `rerank.rankers.pe_adapter`.

    Args:
        folder: folder of the checkpoint.
        encoder: the encoder that the checkpoint was trained for.
        device: the device of the model.
        template: name or path of a prompt template, for a checkpoint whose config.json and folder state none.
        precision: see `rerank.config.Precision`.

    Raises:
        CheckpointError: the checkpoint is incomplete or was trained for another encoder.
        ConfigError: there is no such template, or the checkpoint names another one.
    """
    set_up_gpu(device)
    with loading("PE-Rank checkpoint", folder):
        return _load(folder, encoder, device, template, precision)


def _load(
    folder: Path, encoder: Encoder, device: torch.device, template: str | None, precision: Precision
) -> PECheckpoint:
    config = read_config(folder)
    _check_encoder(folder, config, encoder)
    _check_pooling(folder, config, encoder)
    dtype = weights_dtype(device, precision, hidden_size_of(config))
    _check_has_model(folder)
    base = adapter_base(folder) if _has_adapter(folder) else str(folder)
    if Path(base).is_dir():
        check_fits(Path(base), device, dtype)
    found, files = read_pe_weights(folder, dtype)
    weights = {name: tensor for name, tensor in found.items() if not name.startswith(ENCODER_PREFIX)}
    own_vocabulary = TOKEN_EMBEDDINGS in weights
    of_projector = {name: tensor for name, tensor in weights.items() if _PROJECTOR.search(name)}
    of_transformer = {name: tensor for name, tensor in weights.items() if name not in of_projector}
    if not of_projector and config.projector_type != "identity":
        raise CheckpointError(
            f"{folder} holds no projector: its weights have no tensors projector.*, and there is no {PROJECTOR_FILE}"
        )
    if _has_adapter(folder):  # config.json also counts marker tokens for vectors, for which the base has no embeddings
        config.vocab_size = weights[TOKEN_EMBEDDINGS].shape[0]
    unknown = {name for name in of_transformer if not name.startswith("model.") and name != HEAD}
    check_complete(folder, {"missing_keys": (), "unexpected_keys": unknown, "mismatched_keys": ()})
    token_embeddings = weights[TOKEN_EMBEDDINGS] if own_vocabulary else encoder.token_embeddings
    named = getattr(config, "template", None) or (folder / TEMPLATE_FILE).is_file()
    trained_here = getattr(config, "encoder_sha256", None) is not None
    hashing = start_hashing(files)
    return PECheckpoint(
        transformer=build_transformer(config, of_transformer, token_embeddings, device, precision),
        projector=_projector(folder, config, of_projector, encoder.id.dimension).to(device),
        tokenizer=_own_tokenizer(folder, config) if own_vocabulary else encoder.copy_tokenizer(),
        template=_template(folder, config, template, "pe_rank_text" if own_vocabulary else "pe_rank"),
        own_vocabulary=own_vocabulary,
        decoding="one_step" if trained_here or not own_vocabulary else "dynamic",
        context_tokens=config.max_position_embeddings,
        hashing=hashing,
        warning=_OTHER_PROMPT.format(folder=folder) if own_vocabulary and not (named or template) else "",
    )


def build_transformer(
    config: PretrainedConfig,
    weights: Mapping[str, torch.Tensor],
    token_embeddings: torch.Tensor,
    device: torch.device,
    precision: Precision = "auto",
) -> PreTrainedModel:
    """Returns the transformer without its vocabulary head, ready for inference. No random weights are drawn first.

    Args:
        config: a causal architecture.
        weights: the checkpoint's tensors; exactly those named `model.*` are loaded.
        token_embeddings: (vocabulary, hidden) input embeddings, which the checkpoint does not store.

    Raises:
        CheckpointError: the tensors do not fit the architecture, or the token embeddings do not fit its hidden size.
    """
    if token_embeddings.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"token embeddings of width {token_embeddings.shape[1]} do not fit hidden size {config.hidden_size}; "
            "use the encoder that the checkpoint was made for"
        )
    dtype = weights_dtype(device, precision, hidden_size_of(config))
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype)
    tensors = {  # copies, because the memory alignment of a mapped file would change the last bits of sums
        name.removeprefix(_TRANSFORMER_PREFIX): tensor.to(device, dtype, copy=True)
        for name, tensor in weights.items()
        if name.startswith(_TRANSFORMER_PREFIX)
    }
    try:
        model.load_state_dict(
            tensors | {_TOKEN_EMBEDDINGS: token_embeddings.to(device, dtype, copy=True)}, strict=True, assign=True
        )
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint does not fit its config.json: {error}") from error
    return model.eval().requires_grad_(False).to(device)


def _has_adapter(folder: Path) -> bool:
    """True for a checkpoint of a LoRA training, see `rerank.rankers.pe_adapter`."""
    return (folder / ADAPTER_FILE).is_file()


def read_pe_weights(folder: Path, dtype: torch.dtype) -> tuple[Weights, list[Path]]:
    """Returns all tensors of a checkpoint in any layout, those of an encoder and a head included, and the files read.

    Args:
        dtype: number format in which an adapter is merged into its base.

    Raises:
        CheckpointError: a file is missing or cannot be read.
        ConfigError: the base of an adapter cannot be found.
    """
    if _has_adapter(folder):
        return read_adapted_weights(folder, dtype)
    weights, files = read_weights(folder), weight_files(folder)
    if not any(_PROJECTOR.search(name) for name in weights) and (folder / PROJECTOR_FILE).is_file():
        weights |= read_torch_file(folder / PROJECTOR_FILE)
        files.append(folder / PROJECTOR_FILE)
    return weights, files


def is_aligned_projector(folder: Path) -> bool:
    """Returns True for a folder of the alignment stage of PE-Rank: projector.bin without a language model."""
    has_model = any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*.bin"))
    return (folder / PROJECTOR_FILE).is_file() and not (has_model or _has_adapter(folder))


def load_aligned_projector(folder: Path, encoder: Encoder) -> tuple[nn.Module, str]:
    """Returns the projector of an `is_aligned_projector` folder, and the folder or name of its language model.

    Raises:
        CheckpointError: the projector was trained for another encoder, or the language model was trained, too.
        ConfigError: the language model cannot be found.
    """
    config, path = read_config(folder), folder / "config.json"
    settings = read_settings(path)
    if settings.get("freeze_backbone") is False:
        raise CheckpointError(
            f"{folder} has {PROJECTOR_FILE} alone, and its language model was trained, too (freeze_backbone false in "
            "config.json); give a folder checkpoint-N of that training, which has all weights"
        )
    _check_encoder(folder, config, encoder)
    _check_pooling(folder, config, encoder)
    if not isinstance(base := settings.get("_name_or_path"), str) or not base:
        raise CheckpointError(f"{path} names no _name_or_path, the language model of the projector; add its folder")
    check_findable(base, f"language model of the projector {folder}", f"write its folder as _name_or_path into {path}")
    return _projector(folder, config, read_torch_file(folder / PROJECTOR_FILE), encoder.id.dimension), base


def _check_has_model(folder: Path) -> None:
    """Raises: CheckpointError for a projector alone."""
    if is_aligned_projector(folder):
        raise CheckpointError(
            f"{folder} has {PROJECTOR_FILE} and no language model: it was aligned, and does not rank yet; train it: "
            f"train-pe-rank --base {shlex.quote(str(folder))} --lists LISTS --output-dir RUN"
        )


def _check_encoder(folder: Path, config: PretrainedConfig, encoder: Encoder) -> None:
    """Compares the encoder by its SHA-256, or by its name for a published checkpoint, which does not state the hash.

    An encoder in a folder that is named like the last part of its name on the hub has that name.

    Raises:
        CheckpointError: the checkpoint was trained for another encoder.
    """
    name, sha256 = getattr(config, "encoder_name", None), getattr(config, "encoder_sha256", None)
    if sha256 is not None and sha256 == encoder.id.vectors_sha256:
        return
    if sha256 is not None or encoder.names.isdisjoint({name, str(name).rpartition("/")[2]}):
        known = " or ".join(sorted(encoder.names))
        raise CheckpointError(
            f"{folder} was trained for encoder {name} (sha256 {sha256}), but this service loads {known} (sha256 "
            f"{encoder.id.vectors_sha256}, of weights and prompts); use that encoder, in a folder of its "
            "name, or another checkpoint"
        )


def _check_pooling(folder: Path, config: PretrainedConfig, encoder: Encoder) -> None:
    """Compares the pooling; published checkpoints write `last_token`, sentence-transformers `lasttoken`.

    Raises:
        CheckpointError: the checkpoint was trained for another pooling.
    """
    pooling = getattr(config, "encoder_pooling", None)
    if pooling is not None and str(pooling).replace("_", "") != encoder.pooling.replace("_", ""):
        raise CheckpointError(
            f"{folder} was trained on vectors by {pooling} pooling (encoder_pooling), but {encoder.id.name} is loaded "
            f"with {encoder.pooling or 'none'}; use an encoder with {pooling} pooling or another checkpoint"
        )


def _projector(
    folder: Path, config: PretrainedConfig, weights: Mapping[str, torch.Tensor], encoder_width: int
) -> nn.Module:
    tensors = {match[1]: tensor for name, tensor in weights.items() if (match := _PROJECTOR.search(name))}
    kind = str(getattr(config, "projector_type", None))
    try:
        return load_projector(kind, tensors, encoder_width, config.hidden_size)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _own_tokenizer(folder: Path, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    if not has_tokenizer(folder):
        if _has_adapter(folder):
            return load_tokenizer_of(folder)
        raise CheckpointError(f"{folder} has its own token embeddings but no tokenizer_config.json; add its tokenizer")
    return load_tokenizer(folder, config=config, local_files_only=True)


def _template(folder: Path, config: PretrainedConfig, requested: str | None, default: str) -> Template:
    """Returns the prompt template that config.json names, which may be a file in the folder.

    If config.json names none, as other programs write it, the template is `requested`, or the folder's template.yaml,
    or `default`.

    Raises:
        CheckpointError: the template that config.json names cannot be used.
        ConfigError: there is no template `requested`, or config.json names another one.
    """
    named = getattr(config, "template", None)
    if named is not None and requested not in (None, named):
        raise ConfigError(
            f"template {requested!r} was requested, but {folder} was trained with {named!r}; leave `template` out"
        )
    if named is not None and (folder / named).is_file():
        return load_template(str(folder / named), VECTOR_FIELDS)
    if named is None:
        own = folder / TEMPLATE_FILE
        return load_template(requested or (str(own) if own.is_file() else default), VECTOR_FIELDS)
    try:
        return load_template(named, VECTOR_FIELDS)
    except ConfigError as error:
        raise CheckpointError(f"the config.json of {folder} names a template that cannot be used: {error}") from error
