"""Frozen settings, with units in their names. An unknown key or a value that cannot be read stops the start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rerank.errors import ConfigError

Positive = Annotated[int, Field(gt=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Model(_Settings):
    """A model that requests may name, and the schedule that runs when they name none."""

    name: Annotated[str, Field(min_length=1)]
    strategy: Literal["single", "sliding", "top_down", "tournament"] = "sliding"
    window_size: Positive = 20
    stride: Positive = 10


class IdentityModel(_Model):
    """Keeps the first-stage order."""

    ranker: Literal["identity"]


class PERankModel(_Model):
    """PE-Rank. Without a `path` it gets the zero-effect checkpoint, whose order is the encoder's cosine.

    `decoding: dynamic` chooses passage after passage, as the paper does. `template` is for a checkpoint whose
    config.json names none: the name of one of ours, or the path of a YAML file.
    """

    ranker: Literal["pe-rank"]
    path: Path | None = None
    decoding: Literal["one_step", "dynamic"] = "one_step"
    template: str | None = None


class FirstModel(_Model):
    """FIRST: a causal LM, or a LoRA adapter, read at one position.

    `template` is the name of one of ours or the path of a YAML file, which must be the one that the checkpoint was
    trained with. `permutations: 3` reads every window three times, in three orders.
    """

    ranker: Literal["first"]
    path: Path
    template: str = "first"
    identifiers: Literal["letters", "numbers"] = "letters"
    calibration: Literal["none", "content_free"] = "none"
    permutations: Positive = 1


class GenerationModel(_Model):
    """Permutation generation: a causal LM, or a LoRA adapter, that writes the whole order, as RankZephyr does.

    `template` is the name of one of ours or the path of a YAML file, which must be the one that the checkpoint was
    trained with.
    """

    ranker: Literal["generation"]
    path: Path
    template: str = "first"
    identifiers: Literal["letters", "numbers"] = "numbers"


ModelConfig: TypeAlias = Annotated[
    IdentityModel | PERankModel | FirstModel | GenerationModel, Field(discriminator="ranker")
]


class EngineConfig(_Settings):
    """With max_batch_tokens=4096, a batch holds a hundred PE-Rank windows of 40 positions, or eight of 512."""

    max_batch_tokens: Positive = 4096
    max_queue_tokens: Positive = 1_000_000


class Limits(_Settings):
    """What a request may be at most. A message larger than max_message_bytes is refused by gRPC itself."""

    max_candidates: Positive = 1000
    max_query_chars: Positive = 8_000
    max_instruction_chars: Positive = 8_000
    max_passage_chars: Positive = 200_000
    max_doc_id_chars: Positive = 500
    max_message_bytes: Positive = 16 * 1024 * 1024
    max_request_s: Annotated[float, Field(gt=0)] = 120.0


class ServiceConfig(_Settings):
    """Everything that `rerank serve` reads. The first model answers requests that name none."""

    listen: str = "127.0.0.1:50051"
    index: Path | None = None
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"
    device: str = "auto"
    models: tuple[ModelConfig, ...] = (
        PERankModel(name="pe-rank", ranker="pe-rank"),
        IdentityModel(name="identity", ranker="identity"),
    )
    engine: EngineConfig = EngineConfig()
    limits: Limits = Limits()
    #: How long in-flight requests may take to finish after SIGTERM.
    drain_s: Annotated[float, Field(ge=0)] = 30.0


def load_config(path: Path | None, **overrides: object) -> ServiceConfig:
    """The settings in a YAML file, with those `overrides` that are not None in their place.

    Raises:
        ConfigError: the file cannot be read, or holds an unknown key or a value of the wrong kind.
    """
    settings = _read_yaml(path) if path is not None else {}
    settings |= {key: value for key, value in overrides.items() if value is not None}
    try:
        config = ServiceConfig.model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (given {e['input']!r})" for e in error.errors()
        )
        raise ConfigError(f"{path or 'command line'}: {problems}") from error
    names = [model.name for model in config.models]
    if not names or len(set(names)) != len(names):
        given = ", ".join(names) or "none"
        raise ConfigError(f"{path or 'command line'}: models must be one or more with distinct names, given: {given}")
    return config


def _read_yaml(path: Path) -> dict[str, object]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(settings).__name__}")
    return settings
