"""Writes trained PE-Rank checkpoints in the layout that the code of its authors reads (liuqi6777/pe_rank)."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor

from rerank.checkpoints.settings_files import ADAPTER_FILE, read_settings
from rerank.checkpoints.weights import read_weights
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.models.loading import base_model_of, has_tokenizer
from rerank.models.tokenizer import load_tokenizer
from rerank.rankers.pe_adapter import PROJECTOR_FILE
from rerank.rankers.pe_checkpoint import ENCODER_PREFIX, HEAD, TOKEN_EMBEDDINGS, is_aligned_projector
from rerank_training.pe_rank.model import PEBase

logger = logging.getLogger(__name__)

#: Tokens of the authors' prompts that are replaced by the vector of a passage, and of a passage that was chosen.
MARKS = ("<PLACEHOLDER>", "<RANK>")
#: Prefix of the authors' model types.
_EMBED = "embed_"
#: Architecture for which the authors' code has models → its name in their classes.
_ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral"}
#: Pooling by its name in sentence-transformers → its name in the authors' code.
_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last_token"}
#: Keys of config.json that only this package, or only transformers 5, writes.
_OURS = ("encoder_sha256", "template", "dtype", "rope_parameters")
#: Patterns of the files of a tokenizer, and of the settings of generation.
_TOKENIZER_FILES = (
    *("tokenizer*.json", "*.model", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.*", "generation_config.json"),
)


@dataclass(frozen=True)
class PublishedLayout:
    """The files of the published layout that are not trained weights.

    Attributes:
        settings: content of config.json, with the keys of transformers 4.
        encoder: name → tensor of the encoder, which the authors' code reads from the checkpoint.
        tokenizer: folder of the base's tokenizer.
        marks: mark that the tokenizer lacks → its new token id.
        projector_only: whether only config.json and projector.bin are written, as after the authors' alignment.
    """

    settings: dict[str, Any]
    encoder: Mapping[str, Tensor]
    tokenizer: Path
    marks: Mapping[str, int]
    projector_only: bool

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes config.json, weights and tokenizer. See `Layout.write`.

        Args:
            weights: weights of the transformer as model.*, of the projector as model.projector.*, and of the head.
        """
        settings = dict(self.settings)
        if self.projector_only:
            projector = {name: tensor for name, tensor in weights.items() if name.startswith("model.projector.")}
            torch.save(projector, folder / PROJECTOR_FILE)
        else:
            tensors = self._with_marks(weights)
            settings["vocab_size"] = tensors[TOKEN_EMBEDDINGS].shape[0]
            save_torch_state_dict(tensors | dict(self.encoder), folder)
            write_tokenizer(self.tokenizer, folder, self.marks)
        _write_json(folder / "config.json", settings)

    def _with_marks(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights with a row for each new mark: the mean of the others, as its value is never read."""
        tensors, needed = dict(weights), max(self.marks.values(), default=-1) + 1
        for name in (TOKEN_EMBEDDINGS, HEAD):
            if name in tensors and (added := needed - len(tensors[name])) > 0:
                mean = tensors[name].mean(dim=0, keepdim=True)
                tensors[name] = torch.cat([tensors[name], mean.expand(added, -1)])
        return tensors


def published_layout(base: PEBase, encoder: Encoder, objective: Literal["align", "rank"]) -> PublishedLayout:
    """The published layout of the result of a training.

    The result of an alignment that started from a causal LM is config.json and projector.bin, as in the authors' code.
    All other results are complete checkpoints.

    Raises:
        ConfigError: the authors' code has no model of this kind, or the base's tokenizer is not in a folder.
    """
    raw = read_settings(base.folder / "config.json")
    projector_only = objective == "align" and bool(base.causal_lm)
    settings = _settings(raw, base, encoder)
    if projector_only:
        name = base.causal_lm if not Path(base.causal_lm).is_dir() else str(Path(base.causal_lm).resolve())
        settings |= {"freeze_backbone": True, "architectures": [_class_of(raw, "CausalLM")], "_name_or_path": name}
    elif settings.get("freeze_backbone"):  # the base was aligned
        settings |= {"freeze_backbone": False, "architectures": [_class_of(raw, "RankLM")]}
    folder = _tokenizer_folder(base)
    tokenizer = load_tokenizer(folder)
    missing = [mark for mark in MARKS if mark not in tokenizer.get_vocab()]
    tokenizer.add_tokens(missing, special_tokens=True)
    marks = {mark: cast(int, tokenizer.convert_tokens_to_ids(mark)) for mark in missing}
    tensors = {} if projector_only else _encoder_tensors(base.folder, encoder)
    return PublishedLayout(settings, tensors, folder, marks, projector_only)


def _settings(raw: Mapping[str, Any], base: PEBase, encoder: Encoder) -> dict[str, Any]:
    """config.json of a complete checkpoint: that of the base, and the keys of the authors' training that it lacks.

    Raises: ConfigError if the authors' code has no such model.
    """
    projector, model_type = base.model.settings.projector_type, str(raw.get("model_type"))
    if not base.model.own_vocabulary or not re.fullmatch(r"linear|identity|mlp\dx_gelu", projector):
        raise ConfigError(
            f"--layout published: {base.folder} reads the encoder's token embeddings, or has a projector of type "
            f"{projector}; the code of PE-Rank's authors reads a causal LM with a projector of type linear or "
            "mlp2x_gelu. Leave --layout out, or start from such a base"
        )
    name = _class_of(raw, "RankLM")
    settings = {key: value for key, value in raw.items() if key not in _OURS}
    settings |= _rope(raw.get("rope_parameters") or {}) | {"torch_dtype": "float32"}
    if model_type.startswith(_EMBED):
        return settings
    of_training = {
        "encoder_name": encoder.id.name,
        "encoder_pooling": _pooling(encoder),
        "embedding_size": encoder.id.dimension,
        "projector_type": projector,
        "use_proj": True,
        "tune_mlp_adapter": True,
        "freeze_backbone": False,
        "tokenizer_padding_side": "right",
        "tokenizer_model_max_length": base.context_tokens,
    }
    stated = {key: settings[key] for key in ("encoder_name",) if key in settings}
    return settings | of_training | stated | {"model_type": f"{_EMBED}{model_type}", "architectures": [name]}


def _class_of(raw: Mapping[str, Any], head: str) -> str:
    """The name of the class in the authors' code. Raises: ConfigError if there is none for the architecture."""
    architecture = str(raw.get("model_type")).removeprefix(_EMBED)
    if architecture not in _ARCHITECTURES:
        raise ConfigError(
            f"--layout published: the code of PE-Rank's authors reads {' and '.join(_ARCHITECTURES)}, not "
            f"{architecture}; leave --layout out"
        )
    return f"Embed{_ARCHITECTURES[architecture]}For{head}"


def _rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of rotary embeddings with the keys of transformers 4, which ignores those of transformers 5."""
    if not parameters:
        return {}
    kind, others = str(parameters.get("rope_type", "default")), ("rope_theta", "rope_type")
    theta = {"rope_theta": parameters["rope_theta"]} if "rope_theta" in parameters else {}
    if kind == "default":
        return theta
    return theta | {"rope_scaling": {"type": kind} | {k: v for k, v in parameters.items() if k not in others}}


def _pooling(encoder: Encoder) -> str:
    """The name of the encoder's pooling in the authors' code. Raises: ConfigError if it has no such encoder."""
    if encoder.pooling not in _POOLINGS or not encoder.ends_with_pooling or encoder.id.document_prompt:
        raise ConfigError(
            f"--layout published: encoder {encoder.id.name} pools by {encoder.pooling or 'another way'}, has further "
            f"layers or a prompt of passages ({encoder.id.document_prompt!r}); the code of PE-Rank's authors reads "
            f"encoders without these, that pool by {', '.join(_POOLINGS)}. Leave --layout out"
        )
    return _POOLINGS[encoder.pooling]


def _encoder_tensors(folder: Path, encoder: Encoder) -> dict[str, Tensor]:
    """Name → tensor of the encoder in a checkpoint, or if it has none, of the loaded encoder."""
    weights = {} if is_aligned_projector(folder) or (folder / ADAPTER_FILE).is_file() else read_weights(folder)
    if stored := {name: tensor for name, tensor in weights.items() if name.startswith(ENCODER_PREFIX)}:
        return stored
    _pooling(encoder)
    state = encoder.transformer.state_dict()
    return {f"{ENCODER_PREFIX}encoder.{name}": tensor.detach().cpu() for name, tensor in state.items()}


def _tokenizer_folder(base: PEBase) -> Path:
    """The folder of the base's tokenizer, whose files are copied. Raises: ConfigError if it is not a local folder."""
    source = str(base.folder) if has_tokenizer(base.folder) else base.causal_lm or base_model_of(base.folder)
    if not Path(source).is_dir():
        raise ConfigError(
            f"--layout published copies the tokenizer of the language model, and {source} is not a folder: download it "
            f"(hf download {source} --local-dir FOLDER), and name that folder in the settings of {base.folder}"
        )
    return Path(source)


def write_tokenizer(source: Path, out: Path, marks: Mapping[str, int]) -> None:
    """Copies the files of a tokenizer, and adds the marks to them in the way of transformers 4.

    Args:
        marks: mark → its token id.
    """
    for path in sorted({path for pattern in _TOKENIZER_FILES for path in source.glob(pattern)}):
        shutil.copyfile(path, out / path.name)
    if not any((out / name).is_file() for name in ("tokenizer.model", "vocab.json")):
        logger.warning(
            "%s has no tokenizer.model or vocab.json, which the code of PE-Rank's authors reads (use_fast=False); copy "
            "it from the tokenizer's model",
            source,
        )
    config = read_settings(path := out / "tokenizer_config.json")
    template = out / "chat_template.jinja"
    if template.is_file() and "chat_template" not in config:  # transformers 4 would use its default template
        config["chat_template"] = template.read_text(encoding="utf-8")
        _write_json(path, config)
    if marks:
        _add_marks(out, config, marks)


def _add_marks(out: Path, config: dict[str, Any], marks: Mapping[str, int]) -> None:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {mark: {"content": mark, **flags} for mark in marks}
    decoder = {str(marks[mark]): token | {"special": True} for mark, token in added.items()}
    config["added_tokens_decoder"] = config.get("added_tokens_decoder", {}) | decoder
    config["additional_special_tokens"] = [*config.get("additional_special_tokens", []), *marks]
    _write_json(out / "tokenizer_config.json", config)
    path = out / "added_tokens.json"
    _write_json(path, read_settings(path) | dict(marks))
    special = read_settings(path := out / "special_tokens_map.json")
    special["additional_special_tokens"] = [*special.get("additional_special_tokens", []), *added.values()]
    _write_json(path, special)
    if (path := out / "tokenizer.json").is_file():
        content = json.loads(path.read_text(encoding="utf-8"))
        tokens = [{"id": marks[mark], **token, "special": True} for mark, token in added.items()]
        content["added_tokens"] = [*content.get("added_tokens", []), *tokens]
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True) + "\n", encoding="utf-8")
