"""Configuration of the service: frozen pydantic models of its YAML file, with units in the names of the settings.

Unknown keys and invalid values raise an error at startup.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rerank import bundled
from rerank.errors import ConfigError
from rerank.manifest import trained_window
from rerank.profiles import load_profile
from rerank.types import StrategyKind

#: Strict, so that `true` and "20" are errors and not numbers.
Positive = Annotated[int, Field(gt=0, strict=True)]
#: Number format of the model. `auto` is float32 on a CPU and bfloat16 on CUDA. `bfloat16` on a CPU computes only the
#: linear layers in bfloat16: faster with AVX512_BF16, slower without. Its effect on orders has not been measured.
Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]


#: Quotes values in error messages; the whole of one may be large, as YAML can repeat its parts.
_GIVEN = reprlib.Repr()
_GIVEN.maxlevel, _GIVEN.maxstring, _GIVEN.maxother = 2, 200, 200


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Model(_Settings):
    """Settings that all models have: the name, and the strategy of requests that set none.

    Attributes:
        name: the name by which requests refer to the model.
        strategy: the default strategy: single, sliding, top-down, tournament or cascade. Default: sliding.
        window_size: the default number of passages per window, at least 2. Default: that of the training if the
            checkpoint has a manifest, otherwise 20; for PE-Rank 200, or as many as the checkpoint reads.
        stride: the default number of passages between the starts of two sliding windows, at most `window_size`.
            Default: half of `window_size`.
        preranker: the model that orders all candidates first, by its own defaults, in cascades of requests that name
            none. Its default strategy must not be a cascade. Default: none; the strategy cascade needs one.
    """

    #: Whether a checkpoint with a manifest sets the default of `window_size`.
    _has_window_of_training: ClassVar[bool] = True

    name: Annotated[str, Field(min_length=1)]
    strategy: StrategyKind = StrategyKind.SLIDING
    window_size: Annotated[int, Field(ge=2, strict=True)] = 20
    stride: Positive | None = None
    preranker: str = ""

    @property
    def first_stage_weight(self) -> float:
        """The weight of the first stage in the order of requests that set none."""
        return 0.0

    @model_validator(mode="after")
    def _cascade_has_a_preranker(self) -> Self:
        if self.strategy is StrategyKind.CASCADE and not self.preranker:
            raise ValueError("the strategy cascade needs a preranker; name another model, as in preranker: pe-rank")
        return self

    @model_validator(mode="before")
    @classmethod
    def _defaults_are_those_of_the_profile(cls, settings: Any) -> Any:
        if not isinstance(settings, dict) or settings.get("profile") is None:
            return settings
        try:
            profile = load_profile(str(settings["profile"])).settings
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if (ranker := settings.get("ranker", profile["ranker"])) != profile["ranker"]:
            raise ValueError(f"profile {settings['profile']} is of ranker {profile['ranker']}, not {ranker}")
        return profile | settings

    @model_validator(mode="before")
    @classmethod
    def _default_window_is_that_of_the_training(cls, settings: Any) -> Any:
        if not (cls._has_window_of_training and isinstance(settings, dict)) or "window_size" in settings:
            return settings
        path = settings.get("path", cls.model_fields["path"].default if "path" in cls.model_fields else None)
        size = trained_window(Path(path)) if isinstance(path, str | Path) else None
        return settings if size is None else {**settings, "window_size": size}

    @model_validator(mode="after")
    def _windows_leave_no_gap(self) -> Self:
        if self.stride is not None and self.stride > self.window_size:
            raise ValueError(
                f"with stride {self.stride}, candidates between windows of window_size {self.window_size} would not be "
                f"read; use at most {self.window_size}"
            )
        return self


class InterpolationConfig(_Settings):
    """Settings of the interpolation with the first stage; the sum is that of `rerank.engine.interpolation`.

    Attributes:
        first_stage: weight of the first stage's z-scores beside those of the ranker, 0 to 100. 0: no interpolation.
    """

    first_stage: Annotated[float, Field(ge=0, le=100, strict=True)] = 0.0


class _ScoringModel(_Model):
    """Settings of a model that scores the passages of a window.

    Attributes:
        interpolation: interpolation with the first stage in requests that set none, wherever one window holds all
            passages that are ranked.
    """

    interpolation: InterpolationConfig = InterpolationConfig()

    @property
    def first_stage_weight(self) -> float:
        return self.interpolation.first_stage


class PromptConfig(_Settings):
    """Settings of the prompts of a published model besides its template; see `rerank.prompting.style.PromptStyle`.

    Attributes:
        bos_tokens: number of BOS tokens at the beginning. Default: as the chat template or the tokenizer writes it.
        chat_template: the conversation in Jinja, for a tokenizer without a chat template. Default: none.
        ftfy: repair the encoding of passages with the package ftfy. Default: false.
        max_words: number of words to which passages are cut; 0: all. Default: 0.
    """

    bos_tokens: Annotated[int, Field(ge=0, le=2, strict=True)] | None = None
    chat_template: str = ""
    ftfy: bool = False
    max_words: Annotated[int, Field(ge=0, strict=True)] = 0


class IdentityModel(_Model):
    """Settings of a model that keeps the first-stage order."""

    ranker: Literal["identity"]


class PERankModel(_ScoringModel):
    """Settings of a PE-Rank model (Liu et al., arXiv 2406.14848), which reads one vector per passage.

    Attributes:
        profile: name of the profile of a published model, which has the defaults of the other settings.
        path: folder of the checkpoint. Default: the bundled checkpoint for the default encoder; for any other encoder,
            a zero-initialised checkpoint, whose order is that of the encoder's cosine.
        decoding: `one_step` scores all passages of a window in one forward pass; `dynamic` generates the order passage
            by passage, as the paper does. Default: that of the checkpoint: dynamic for a published one, one_step for
            one trained by this package.
        template: name of a bundled prompt template or path of a YAML file, for a checkpoint whose config.json names no
            template. Default: the template of the checkpoint.
        precision: number format of the model. Default: auto.
        interpolation: interpolation with the first stage in requests that set none. Default: first_stage 0.25.
        passage_text_tokens: limit on the tokens of a passage's text that a template with `{text}` shows beside the
            vector. Default: 64.
    """

    _has_window_of_training: ClassVar[bool] = False

    ranker: Literal["pe-rank"]
    profile: str | None = None
    path: Path | None = None
    #: Holds the union of two searches of depth 100, which relevance feedback ranks.
    window_size: Annotated[int, Field(ge=2, strict=True)] = 200
    #: Chosen on TREC DL 2021 and pydoc with PE-Rank and with its zero-initialised start; see docs/results.md.
    interpolation: InterpolationConfig = InterpolationConfig(first_stage=0.25)
    decoding: Literal["one_step", "dynamic"] | None = None
    template: str | None = None
    precision: Precision = "auto"
    passage_text_tokens: Positive = 64


class FirstModel(_ScoringModel):
    """Settings of a FIRST model (Gangi Reddy et al., arXiv 2406.15657): a causal LM, scored at one position.

    A checkpoint of `train-first` contains its template, identifiers and passage_tokens. For another checkpoint, set
    those with which it was trained.

    Attributes:
        profile: name of the profile of a published model, which has the defaults of the other settings.
        path: folder of the causal LM or of a LoRA adapter, or a GGUF file. Default: the bundled adapter, which was
            trained on windows of 20 passages, over SmolLM2-135M.
        template: name of a bundled prompt template or path of a YAML file. Default: the template of the checkpoint, or
            `first`.
        identifiers: kind of the passage identifiers. Default: that of the checkpoint, or letters.
        passage_tokens: limit on the tokens of a passage in the prompt; 0 shows as many as fit into the model's context.
            Default: that of the checkpoint, or 0.
        prompt: what the prompts have besides the words of the template.
        order_prior: weight of the order in which a window is read: the log-prior of a passage falls by this many nats
            with each place, see `FirstRanker`. Default: 0.
        calibration: `content_free` subtracts the log-prior of the identifiers, measured on passages without content,
            from their log-probabilities. Default: none.
        permutations: number of orders in which each window is read; the log-probabilities are averaged. Default: 1.
        precision: number format of the model. Default: auto.
    """

    ranker: Literal["first"]
    profile: str | None = None
    path: Path = bundled.FIRST
    template: str | None = None
    identifiers: Literal["letters", "numbers"] | None = None
    passage_tokens: Annotated[int, Field(ge=0, strict=True)] | None = None
    prompt: PromptConfig = PromptConfig()
    calibration: Literal["none", "content_free"] = "none"
    permutations: Positive = 1
    order_prior: Annotated[float, Field(ge=0, le=100, strict=True)] = 0.0
    precision: Precision = "auto"


class GenerationModel(_Model):
    """Settings of a permutation generation model: a causal LM that generates the full order, as RankZephyr does.

    Attributes:
        profile: name of the profile of a published model, which has the defaults of the other settings.
        path: folder of the causal LM or of a LoRA adapter, or a GGUF file.
        prompt: what the prompts have besides the words of the template.
        template: name of a bundled prompt template or path of a YAML file; use the template with which the model was
            trained. Default: first.
        identifiers: kind of the passage identifiers. Default: numbers.
        precision: number format of the model. Default: auto.
    """

    ranker: Literal["generation"]
    profile: str | None = None
    path: Path
    prompt: PromptConfig = PromptConfig()
    template: str = "first"
    identifiers: Literal["letters", "numbers"] = "numbers"
    precision: Precision = "auto"


ModelConfig: TypeAlias = Annotated[
    IdentityModel | PERankModel | FirstModel | GenerationModel, Field(discriminator="ranker")
]


class EngineConfig(_Settings):
    """Settings of the engine: batches, queue and deadlines.

    Attributes:
        max_batch_tokens: limit on the tokens of a batch. For comparison, 4096 tokens are a hundred PE-Rank windows of
            40 positions or eight windows of 512 tokens. Default: 512 on a CPU; on CUDA, the size that saturates the
            device, measured at startup; for a model that reads windows one by one, one window.
        max_queue_tokens: limit on the remaining tokens of all admitted requests; a request that exceeds it fails with
            RESOURCE_EXHAUSTED. A window counts at least 16. Default: 1,000,000.
        max_windows: limit on the windows of a request; a strategy that needs more fails with INVALID_ARGUMENT. Default:
            2,000.
        age_factor: balance between short and old requests: one second of waiting offsets this many seconds of remaining
            work. A larger value favours older requests, a smaller one shorter requests. Default: 0.05.
            `scripts/simulate_scheduler.py` shows the effect.
        answer_margin_s: how long before its deadline a partial answer is returned, in seconds, so that it arrives in
            time. Default: 0.1. Measured on two busy cores (2026-11-21): with 0.02, 40 of 40 answers with 100 short
            passages arrived in time; of 40 answers with 1000 passages of 2,000 characters, 31 did with 0.05 and 38
            with 0.1.
    """

    max_batch_tokens: Positive | None = None
    max_queue_tokens: Positive = 1_000_000
    max_windows: Positive = 2000
    age_factor: Annotated[float, Field(gt=0, strict=True)] = 0.05
    answer_margin_s: Annotated[float, Field(ge=0, strict=True)] = 0.1


class Limits(_Settings):
    """Limits on requests. A request that exceeds one fails with INVALID_ARGUMENT, unless another status is named.

    Attributes:
        max_candidates: number of candidates, and depth of a search. Default: 1,000.
        max_query_chars: length of the query in characters. Default: 8,000.
        max_instruction_chars: length of the instruction in characters. Default: 8,000.
        max_passage_chars: length of a passage in characters. Default: 200,000.
        max_doc_id_chars: length of a doc_id in characters. Default: 500.
        max_message_bytes: size of a request in bytes, below 2 GiB; gRPC refuses a larger one with RESOURCE_EXHAUSTED.
            Default: 16 MiB.
        max_request_s: time to answer a request, in seconds; later it fails with DEADLINE_EXCEEDED. Default: 120.
        max_calls: number of calls in flight; further ones fail with RESOURCE_EXHAUSTED. Default: 1,000.
        max_bytes_in_flight: bytes of all requests and answers in flight, without messages of up to 64 KiB; calls whose
            message exceeds it fail with RESOURCE_EXHAUSTED. A message alone may exceed it. Default: 64 MiB.
        max_transfer_s: time that a request may take to arrive and an answer to be read, in seconds; a later request
            fails with RESOURCE_EXHAUSTED, and the connection of a later answer ends. Default: 20.
    """

    max_candidates: Positive = 1000
    max_query_chars: Positive = 8_000
    max_instruction_chars: Positive = 8_000
    max_passage_chars: Positive = 200_000
    max_doc_id_chars: Positive = 500
    max_message_bytes: Annotated[int, Field(gt=0, lt=2**31, strict=True)] = 16 * 1024 * 1024
    max_request_s: Annotated[float, Field(gt=0, strict=True)] = 120.0
    max_calls: Positive = 1000
    max_bytes_in_flight: Positive = 64 * 1024 * 1024
    max_transfer_s: Annotated[float, Field(gt=0, strict=True)] = 20.0


class ServiceConfig(_Settings):
    """All settings of `rerank serve`.

    Attributes:
        listen: HOST:PORT of the service; port 0 chooses a free one. Default: 127.0.0.1:50051.
        index: folder of an index built by `rerank index`, which Search needs. Default: none.
        encoder: name or folder of the sentence-transformers encoder. Default: all-MiniLM-L6-v2.
        encoder_name: the name on the hub of an encoder that is given as a folder; a PE-Rank checkpoint made for an
            encoder of that name accepts it. Default: the name in the folder's config.json.
        device: auto, cpu, cuda or cuda:N. Default: auto.
        models: the models that requests may name; the first one answers requests that name none. Default: first
            (a cascade, in which pe-rank orders all candidates and then first the best 20), pe-rank and identity.
        engine: settings of the engine.
        limits: limits on requests.
        drain_s: time that calls in flight get to finish after SIGTERM, in seconds. Default: 30.
    """

    listen: str = "127.0.0.1:50051"
    index: Path | None = None
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"
    encoder_name: str | None = None
    device: str = "auto"
    models: tuple[ModelConfig, ...] = (
        FirstModel(name="first", ranker="first", strategy=StrategyKind.CASCADE, preranker="pe-rank", order_prior=0.2),
        PERankModel(name="pe-rank", ranker="pe-rank"),
        IdentityModel(name="identity", ranker="identity"),
    )
    engine: EngineConfig = EngineConfig()
    limits: Limits = Limits()
    drain_s: Annotated[float, Field(ge=0, strict=True)] = 30.0


def load_config(
    path: Path | None, first_models: Sequence[Mapping[str, object]] = (), **overrides: object
) -> ServiceConfig:
    """Reads the configuration from a YAML file; settings that it leaves out have their default.

    Args:
        path: the YAML file; None uses the defaults only.
        first_models: further models, in the form of the file, which precede the models of the file. Without models in
            the file they precede the default models and replace those with the same names.
        overrides: settings that replace those of the file, unless they are None.

    Raises:
        ConfigError: the file cannot be read, or contains an unknown key or an invalid value.
    """
    settings = _read_yaml(path) if path is not None else {}
    settings |= {key: value for key, value in overrides.items() if value is not None}
    if first_models:
        settings["models"] = [*first_models, *_further_models(settings, first_models)]
    source = path or "command line"
    try:
        config = ServiceConfig.model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (given {_GIVEN.repr(e['input'])})" for e in error.errors()
        )
        raise ConfigError(f"{source}: {problems}") from error
    names = [model.name for model in config.models]
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            f"{source}: models must be one or more with distinct names, given: {', '.join(names) or 'none'}"
        )
    for model in config.models:
        _check_preranker(model, config.models, source)
    return config


def _check_preranker(model: ModelConfig, models: Sequence[ModelConfig], source: object) -> None:
    """Raises: ConfigError if the preranker is no model, the model itself, or a cascade by default."""
    choices = [other.name for other in models if other is not model and other.strategy is not StrategyKind.CASCADE]
    if model.preranker and model.preranker not in choices:
        raise ConfigError(
            f"{source}: preranker {model.preranker!r} of model {model.name} is none of {', '.join(choices) or 'none'}, "
            "the other models whose strategy is no cascade"
        )


def _further_models(settings: Mapping[str, object], first_models: Sequence[Mapping[str, object]]) -> Sequence[object]:
    """The models of the file, or without any the default models with other names than `first_models`."""
    replaced = {model["name"] for model in first_models}
    defaults = ServiceConfig.model_fields["models"].default
    models = settings.get("models", [model for model in defaults if model.name not in replaced])
    return models if isinstance(models, list | tuple) else [models]


def _read_yaml(path: Path) -> dict[str, object]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(settings, dict | None):
        raise ConfigError(f"{path}: expected keys and values, found {type(settings).__name__}")
    return settings or {}
