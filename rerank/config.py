"""Frozen settings, with units in their names. An unknown key or a value that cannot be read stops the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rerank import bundled
from rerank.errors import ConfigError
from rerank.types import StrategyKind

#: Strict, because `true` is no number and "20" is a slip.
Positive = Annotated[int, Field(gt=0, strict=True)]
#: How a model computes. `auto` is float32 on a CPU and bfloat16 on CUDA. `bfloat16` on a CPU keeps float32 weights and
#: computes the linear layers in bfloat16: faster where the CPU has AVX512_BF16, slower elsewhere. What it does to the
#: order was not measured here.
Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Model(_Settings):
    """A model that requests may name, and the schedule that runs when they name none.

    Without a `stride`, windows overlap by half.
    """

    name: Annotated[str, Field(min_length=1)]
    strategy: StrategyKind = StrategyKind.SLIDING
    window_size: Annotated[int, Field(ge=2, strict=True)] = 20
    stride: Positive | None = None

    @field_validator("strategy")
    @classmethod
    def _a_default_names_no_second_model(cls, strategy: StrategyKind) -> StrategyKind:
        if strategy is StrategyKind.CASCADE:
            raise ValueError("a cascade needs a preranker, which only a request names; use another strategy here")
        return strategy

    @model_validator(mode="after")
    def _stride_is_no_gap(self) -> Self:
        if self.stride is not None and self.stride > self.window_size:
            raise ValueError(
                f"stride {self.stride} would leave candidates between windows of window_size {self.window_size} "
                f"unread; use at most {self.window_size}"
            )
        return self


class IdentityModel(_Model):
    """Keeps the first-stage order."""

    ranker: Literal["identity"]


class PERankModel(_Model):
    """PE-Rank. Without a `path` it gets the zero-init checkpoint, whose order is the encoder's cosine.

    `decoding: dynamic` chooses passage after passage, as the paper does. `template` is for a checkpoint whose
    config.json names none: the name of one of ours, or the path of a YAML file. `passage_text_tokens`: how much of a
    passage a template with `{text}` shows beside its vector.
    """

    ranker: Literal["pe-rank"]
    path: Path | None = None
    decoding: Literal["one_step", "dynamic"] = "one_step"
    template: str | None = None
    precision: Precision = "auto"
    passage_text_tokens: Positive = 64


class FirstModel(_Model):
    """FIRST: a causal LM, or a LoRA adapter, read at one position. Without a `path`, the small one that ships,
    which was trained on windows of 10.

    A checkpoint of `train-first` knows its template, identifiers (letters or numbers) and passage_tokens (the most
    tokens of a passage that are shown; 0: as many as fit). For others, `template` is the name of one of ours or the
    path of a YAML file, which must be the one that the checkpoint was trained with; without it, `first` and letters.
    `permutations: 3` reads every window three times, in three orders.
    """

    ranker: Literal["first"]
    path: Path = bundled.FIRST
    template: str | None = None
    identifiers: Literal["letters", "numbers"] | None = None
    passage_tokens: Annotated[int, Field(ge=0, strict=True)] | None = None
    calibration: Literal["none", "content_free"] = "none"
    permutations: Positive = 1
    precision: Precision = "auto"


class GenerationModel(_Model):
    """Permutation generation: a causal LM, or a LoRA adapter, that writes the whole order, as RankZephyr does.

    `template` is the name of one of ours or the path of a YAML file, which must be the one that the checkpoint was
    trained with.
    """

    ranker: Literal["generation"]
    path: Path
    template: str = "first"
    identifiers: Literal["letters", "numbers"] = "numbers"
    precision: Precision = "auto"


ModelConfig: TypeAlias = Annotated[
    IdentityModel | PERankModel | FirstModel | GenerationModel, Field(discriminator="ranker")
]


class EngineConfig(_Settings):
    """Batches and queue.

    max_batch_tokens: with 4096, a batch holds a hundred PE-Rank windows of 40 positions, or eight of 512. None: on a
    CPU 512, on CUDA what saturates the device, measured at start; a model that reads windows one by one gets one.
    max_queue_tokens: the bound on what remains of all requests in work.
    age_factor: seconds of remaining work that a second of waiting makes up for. Larger: older requests first; smaller:
    shorter ones. scripts/simulate_scheduler.py shows what it does.
    answer_margin_s: how long before its deadline a partial answer is given, so that it arrives in time. On
    two busy cores, of 40 answers with 100 short passages 40 did with 0.02; of 40 with 1000 passages of 2,000 characters
    31 did with 0.05, 38 with 0.1 (2026-11-21).
    """

    max_batch_tokens: Positive | None = None
    max_queue_tokens: Positive = 1_000_000
    age_factor: Annotated[float, Field(gt=0, strict=True)] = 0.05
    answer_margin_s: Annotated[float, Field(ge=0, strict=True)] = 0.1


class Limits(_Settings):
    """What a request may be at most. A message larger than max_message_bytes is refused by gRPC itself."""

    max_candidates: Positive = 1000
    max_query_chars: Positive = 8_000
    max_instruction_chars: Positive = 8_000
    max_passage_chars: Positive = 200_000
    max_doc_id_chars: Positive = 500
    max_message_bytes: Positive = 16 * 1024 * 1024
    max_request_s: Annotated[float, Field(gt=0, strict=True)] = 120.0


class ServiceConfig(_Settings):
    """Everything that `rerank serve` reads. The first model answers requests that name none."""

    listen: str = "127.0.0.1:50051"
    index: Path | None = None
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"
    device: str = "auto"
    models: tuple[ModelConfig, ...] = (
        PERankModel(name="pe-rank", ranker="pe-rank"),
        FirstModel(name="first", ranker="first", window_size=10),
        IdentityModel(name="identity", ranker="identity"),
    )
    engine: EngineConfig = EngineConfig()
    limits: Limits = Limits()
    #: How long in-flight requests may take to finish after SIGTERM.
    drain_s: Annotated[float, Field(ge=0, strict=True)] = 30.0


def load_config(
    path: Path | None, first_models: Sequence[Mapping[str, object]] = (), **overrides: object
) -> ServiceConfig:
    """The settings in a YAML file, with those `overrides` that are not None in their place.

    Args:
        first_models: models, in the file's form, that come before its own; or before the default ones, of which they
            replace those with their names.

    Raises:
        ConfigError: the file cannot be read, or holds an unknown key or a value of the wrong kind.
    """
    settings = _read_yaml(path) if path is not None else {}
    settings |= {key: value for key, value in overrides.items() if value is not None}
    if first_models:
        taken = {model["name"] for model in first_models}
        defaults = ServiceConfig.model_fields["models"].default
        others = settings.get("models", [model for model in defaults if model.name not in taken])
        settings["models"] = [*first_models, *(others if isinstance(others, list | tuple) else [others])]
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
