"""Model registry: loads and self-tests the configured models; turns a request's options into a strategy."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from rerank.checkpoints import bundled
from rerank.checkpoints.manifest import language_of
from rerank.config import (
    ApiModel,
    CheckpointModel,
    CrossEncoderModel,
    FirstModel,
    FusionModel,
    GenerationModel,
    IdentityModel,
    ModelConfig,
    PERankModel,
    PromptConfig,
)
from rerank.config.cascades import possible_prerankers
from rerank.engine.relevance import check_min_relevance, gives_relevance, relevance_curves
from rerank.engine.strategies import Step, Steps, describe, strategy_of
from rerank.errors import MAX_QUOTED_CHARS, CheckpointError, ConfigError, InvalidRequest, NotFound, SelfTestFailed
from rerank.models.checkpoint_errors import loading
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.loading import load_tokenizer_of, pick_device
from rerank.models.sparse_encoder import SparseEncoder
from rerank.models.zero_init import write_zero_init_checkpoint
from rerank.profiles import load_profile
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.published import PREFIX
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import Template, load_template
from rerank.rankers import self_test
from rerank.rankers.api import ApiRanker
from rerank.rankers.base import Ranker, RankerInfo, ServedRanker
from rerank.rankers.cross_encoder import CrossEncoderRanker
from rerank.rankers.failed import FailedRanker, unknown_info
from rerank.rankers.first import FirstPrompts, FirstRanker
from rerank.rankers.first_checkpoint import first_settings
from rerank.rankers.first_early_exit import EarlyExitFirstRanker
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.generation import GenerationPrompts, GenerationRanker
from rerank.rankers.identity import IdentityRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.rankers.served import ModelOnServers, ServedFirst, ServedGeneration
from rerank.types import FirstStageKind, OnFailure, RankOptions, ScoreKind, StrategyKind
from rerank.util.files import cached_folder, sha256_of_files

log = logging.getLogger(__name__)

LoadSparseEncoder: TypeAlias = Callable[[], SparseEncoder]

#: Settings that golden.json of earlier checkpoints lacks, with the value that it stands for.
_LATER_DEFAULTS = (("order_prior", 0.0), ("early_exit", False))


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A configured model, as `ListModels` reports it."""

    name: str
    info: RankerInfo
    default_strategy: str
    is_default: bool
    #: The reason why the model is not served; empty if it is.
    problem: str = ""
    gives_relevance: bool = False


class ModelRegistry:
    """The configured models by name; the first one is the default.

    Args:
        models: configuration of all models.
        rankers: their rankers. Requests that name a FailedRanker raise its error.

    Raises:
        InvalidRequest: the default window of a model is larger than its ranker reads.
    """

    def __init__(self, models: Sequence[ModelConfig], rankers: Mapping[str, Ranker | ServedRanker]) -> None:
        self.rankers = rankers
        self._models = {model.name: model for model in models}
        self._infos = {name: ranker.info for name, ranker in rankers.items()}
        self._window_sizes = {name: self._default_window_size(name) for name in self._models}
        self._default_steps = {name: self._steps(name, RankOptions()) for name in self._models}

    def describe(self) -> list[ModelDescription]:
        """The configured models, the default one first."""
        return [self._describe(*each, number == 0) for number, each in enumerate(self._default_steps.items())]

    def _describe(self, name: str, steps: Steps, is_default: bool) -> ModelDescription:
        gives = gives_relevance(steps, self._infos)
        return ModelDescription(name, self._infos[name], describe(steps), is_default, self._problem(name), gives)

    def resolve(self, options: RankOptions, instruction: str = "") -> Steps:
        """The steps of a request, completed from the defaults of its model, which is that of the last step.

        Raises:
            NotFound: there is no such model.
            CheckpointError, SelfTestFailed: the model, or the preranker of a cascade, is not served, and this is to be
                an error.
            InvalidRequest: the preranker is unknown, the window is too large, the prompt has no instruction, or there
                is no relevance for `min_relevance`.
        """
        name = options.model or next(iter(self._models))
        if name not in self._models:
            raise NotFound(f"model {name[:MAX_QUOTED_CHARS]!r} is none of {', '.join(self._models)}", {"model": name})
        self._check_served(name, options)
        if instruction and not self._infos[name].reads_instruction:
            raise self._instruction_not_read(name)
        steps = self._steps(name, options)
        for step in steps:
            self._check_served(step.model, options)
        if options.min_relevance is not None:
            check_min_relevance(options.min_relevance, steps, self._infos, self._default_steps)
        return steps

    def _default_window_size(self, name: str) -> int:
        """The configured window size; if none is configured, the largest one up to the default that the model reads."""
        model = self._models[name]
        is_configured = "window_size" in model.model_fields_set
        return model.window_size if is_configured else min(model.window_size, self._infos[name].max_window_size)

    def _problem(self, name: str) -> str:
        """The reason for which requests for the model fail by default; empty if they do not."""
        model, problem = self._models[name], self._own_problem(name)
        if not problem and model.strategy is StrategyKind.CASCADE and (other := self._problem(model.preranker)):
            return f"its preranker {model.preranker} is not served: {other}"
        return problem

    def _own_problem(self, name: str) -> str:
        """The reason for which the model itself cannot rank; empty if it can."""
        ranker = self.rankers[name]
        return ranker.problem if isinstance(ranker, ServedRanker | FailedRanker) else ""

    def _check_served(self, name: str, options: RankOptions) -> None:
        ranker = self.rankers[name]
        if isinstance(ranker, FailedRanker) and options.on_failure != OnFailure.FIRST_STAGE:
            raise ranker.error

    def _instruction_not_read(self, name: str) -> InvalidRequest:
        others = [other for other, info in self._infos.items() if info.reads_instruction]
        return InvalidRequest(
            "instruction",
            f"the prompt of model {name} has no place for an instruction; leave it out, or "
            + (
                f"use one that reads it: {', '.join(others)}"
                if others
                else "serve one whose template has {instruction}, trained with it"
            ),
            {"model": name},
        )

    def _steps(self, name: str, options: RankOptions) -> Steps:
        default, limit = self._models[name], self._infos[name].max_window_size
        size = options.window_size or self._window_sizes[name]
        if size > limit:
            raise _window_too_large(name, size, limit)
        kind = StrategyKind(options.strategy or default.strategy)
        default_stride = default.stride if size == self._window_sizes[name] else None
        strategy = strategy_of(kind, size, options.stride or default_stride or size // 2, options.early_stop)
        weight = options.interpolation
        if weight is None:
            # Before the last step of a cascade is a preranker, whose scores weigh as those of a lexical first stage.
            before = "" if kind is StrategyKind.CASCADE else options.first_stage_kind
            weight = self._default_weight(name, FirstStageKind(before or FirstStageKind.LEXICAL))
        if weight:
            self._check_weight(name, weight)
        step = Step(name, strategy, weight, must_interpolate=options.interpolation is not None)
        if kind is StrategyKind.CASCADE:
            return *self._preranker_steps(name, options), step
        return (step,)

    def _default_weight(self, name: str, kind: FirstStageKind) -> float:
        is_order = self._infos[name].score_kind is ScoreKind.RANK
        return 0.0 if is_order else self._models[name].first_stage_weight(kind)

    def _check_weight(self, name: str, weight: float) -> None:
        """Raises: InvalidRequest if the model gives no scores, or the weight of the first stage is no such number."""
        if self._infos[name].score_kind is ScoreKind.RANK:
            raise InvalidRequest(
                "strategy.interpolation",
                f"{name} gives an order without scores, which cannot be interpolated; use interpolation 0, or a model "
                "with scores",
                {"model": name},
            )
        if not 0 < weight < math.inf:
            raise InvalidRequest(
                "strategy.interpolation",
                f"weight {weight} of the first stage is not between 0 and infinity; use one from 0 to 100",
                {"first_stage": str(weight)},
            )

    def _preranker_steps(self, model: str, options: RankOptions) -> Steps:
        """The steps of a cascade's preranker: its own default strategy, which may be a cascade of two models."""
        preranker = options.preranker or self._models[model].preranker
        possible = possible_prerankers(model, self._models)
        if preranker not in possible:
            choices = f"use one of {', '.join(possible)}" if possible else "configure another model"
            raise InvalidRequest(
                "strategy.preranker",
                f"{preranker[:MAX_QUOTED_CHARS]!r} cannot be the preranker of {model}; {choices}",
                {"preranker": preranker},
            )
        return self._steps(preranker, RankOptions(first_stage_kind=options.first_stage_kind))


def load_models(
    models: Sequence[ModelConfig],
    encoder: Encoder,
    device: str,
    sparse_encoder: LoadSparseEncoder = SparseEncoder,
) -> ModelRegistry:
    """Loads and self-tests each model; one that cannot be loaded, or fails its self-test, is logged and not served.

    A model that inference servers run is tested when the service opens, and whenever a server comes back.

    Args:
        sparse_encoder: loads the learned sparse encoder, or returns the one that is loaded; called by models that read
            its scores.

    Raises:
        ConfigError: a setting of a model cannot be used.
        CheckpointError: no model can be loaded.
    """
    rankers: dict[str, Ranker | ServedRanker] = {}
    for model in models:
        try:
            rankers[model.name] = _load_and_test(with_path(model, encoder), encoder, device, sparse_encoder)
        except CheckpointError as error:
            rankers[model.name] = _not_served(model, unknown_info(model.ranker, model.name), error)
    failed = [ranker for ranker in rankers.values() if isinstance(ranker, FailedRanker)]
    if len(failed) == len(rankers) and all(ranker.kind is CheckpointError for ranker in failed):
        raise failed[0].error
    encoders = signal_encoders(rankers)
    for model in models:
        if not isinstance(ranker := rankers[model.name], FailedRanker):
            curves = relevance_curves(with_path(model, encoder), ranker.info, encoders)
            ranker.info = replace(ranker.info, relevance=curves)
    return ModelRegistry(models, rankers)


def signal_encoders(rankers: Mapping[str, Ranker | ServedRanker]) -> dict[str, str]:
    """Signal → SHA-256 of the encoder behind it, which is the same for all rankers of a service."""
    return {signal: sha256 for ranker in rankers.values() for signal, sha256 in ranker.info.signals.items()}


def _load_and_test(
    model: ModelConfig, encoder: Encoder, device: str, sparse_encoder: LoadSparseEncoder
) -> Ranker | ServedRanker:
    ranker: Ranker | ServedRanker
    if isinstance(model, ApiModel) or (isinstance(model, FirstModel | GenerationModel) and model.served_by):
        ranker = load_served(model)
    else:
        ranker = load_ranker(model, encoder, device, sparse_encoder)
    if ranker.info.precision:
        log.info("model %s computes in %s", model.name, ranker.info.precision)
    if warning := _warning(model, ranker.info):
        log.warning("model %s: %s", model.name, warning)
        ranker.info = replace(ranker.info, warning=warning)
    language = language_of(model.path) if isinstance(model, FirstModel | PERankModel) and model.path else ""
    ranker.info = replace(ranker.info, language=language or ranker.info.language)
    try:
        if not isinstance(ranker, ServedRanker):
            _self_test(ranker, model, device)
    except SelfTestFailed as error:
        return _not_served(model, ranker.info, error)
    return ranker


def _not_served(model: ModelConfig, info: RankerInfo, error: CheckpointError | SelfTestFailed) -> FailedRanker:
    log.error("model %s is not served: %s", model.name, error)
    return FailedRanker(model.name, info, str(error), type(error))


def scoring_settings(model: ModelConfig) -> dict[str, object]:
    """The settings of a model that its scores depend on, besides weights, template and precision."""
    of_schedule = {"strategy", "window_size", "stride", "preranker", "interpolation", "relevance"}
    excluded = {"name", "path", "template", "precision", "profile", "prompt", "served_by", "tokenizer"} | of_schedule
    settings = model.model_dump(mode="json", exclude=excluded)
    return {key: value for key, value in settings.items() if (key, value) not in _LATER_DEFAULTS}


def with_path(model: ModelConfig, encoder: Encoder) -> ModelConfig:
    """The model with the path of its checkpoint.

    A PE-Rank model without a path gets the bundled checkpoint if `encoder` is the default encoder, for which it was
    trained, and a zero-initialised checkpoint for any other encoder.
    """
    if not isinstance(model, PERankModel) or model.path is not None:
        return model
    path = bundled.PE_RANK if encoder.id.name == DEFAULT_ENCODER else zero_init_checkpoint(encoder)
    return model.model_copy(update={"path": path})


def zero_init_checkpoint(encoder: Encoder) -> Path:
    """The zero-initialised PE-Rank checkpoint for an encoder; written to the user's cache on first use."""
    name = f"pe-rank-zero-init-{encoder.id.sha256[:12]}"
    return cached_folder(name, lambda folder: write_zero_init_checkpoint(encoder, folder))


def load_ranker(
    model: ModelConfig,
    encoder: Encoder,
    device: str,
    sparse_encoder: LoadSparseEncoder = SparseEncoder,
) -> Ranker:
    """Loads the ranker of a model that runs in this process, and whose path `with_path` has set.

    Raises:
        ConfigError: a setting of the model cannot be used.
        CheckpointError: its checkpoint cannot be loaded.
    """
    path = model.checkpoint
    with loading("checkpoint", path) if path else nullcontext():
        return _load_ranker(model, encoder, device, sparse_encoder)


def _load_ranker(model: ModelConfig, encoder: Encoder, device: str, sparse_encoder: LoadSparseEncoder) -> Ranker:
    match model:
        case IdentityModel():
            return IdentityRanker()
        case FusionModel():
            return FusionRanker(model, encoder, sparse_encoder() if model.sparse_weight else None)
        case PERankModel():
            if model.path is None:
                raise ConfigError(f"model {model.name} has no path; this is a bug")
            return PERankRanker(
                model.path, encoder, device, model.decoding, model.template, model.passage_text_tokens, model.precision
            )
        case FirstModel():
            return load_first(model, device)
        case GenerationModel():
            kind = IdentifierKind(model.identifiers)
            template = _styled(model.template, model.prompt)
            return GenerationRanker(model.path, template, kind, device, model.precision, model.generation)
        case CrossEncoderModel():
            return CrossEncoderRanker(model.path, device, model.precision, model.pair_tokens)
        case ApiModel():
            raise ConfigError(f"model {model.name} does not run in this process; this is a bug")


def load_first(model: FirstModel, device: str) -> FirstRanker:
    """See `load_ranker`; this one needs no encoder."""
    settings = first_settings(model)
    template = _styled(settings.template, model.prompt)
    options = (settings.identifiers, model.order_prior, device, model.precision, settings.passage_tokens)
    if settings.early_exit_layer:
        return EarlyExitFirstRanker(model.path, settings.early_exit_layer, template, *options)
    return FirstRanker(model.path, template, *options)


def load_served(model: FirstModel | GenerationModel | ApiModel) -> ServedRanker:
    """The ranker of a model that servers run; none of them is contacted.

    Raises:
        ConfigError: a setting of the model cannot be used.
        CheckpointError: its tokenizer cannot be loaded, or does not fit.
    """
    if model.served_by is None:
        raise ConfigError(f"model {model.name} has no served_by; this is a bug")
    if isinstance(model, ApiModel):
        return ApiRanker(model.name, model.served_by, model.served_by.api_key())
    tokenizer = load_tokenizer_of(model.tokenizer or model.path)
    has_golden = self_test.golden_files(model.path)
    revision = sha256_of_files(sorted(model.path.glob("*.safetensors"))) if has_golden else ""
    tolerance = self_test.tolerance("cuda", model.precision)
    check = partial(self_test.check, settings=scoring_settings(model), folder=model.path, allowed=tolerance)
    served = ModelOnServers(model.name, model.served_by, model.served_by.api_key(), tokenizer, revision, check)
    if isinstance(model, GenerationModel):
        template, kind = _styled(model.template, model.prompt), IdentifierKind(model.identifiers)
        return ServedGeneration(
            served, lambda tokens: GenerationPrompts(tokenizer, tokens, template, kind, model.generation)
        )
    settings = first_settings(model)
    template = _styled(settings.template, model.prompt)
    return ServedFirst(
        served,
        lambda tokens: FirstPrompts(
            tokenizer, tokens, template, settings.identifiers, model.order_prior, settings.passage_tokens
        ),
    )


def _styled(template: str, prompt: PromptConfig) -> Template:
    return load_template(template).with_style(PromptStyle(**prompt.model_dump()))


def _warning(model: ModelConfig, info: RankerInfo) -> str:
    """The difference that keeps a model from its published figures; empty if none is known."""
    if not isinstance(model, CheckpointModel) or isinstance(model, PERankModel) or model.profile is None:
        return info.warning
    template = model.template or "of the service"
    if template.startswith(PREFIX) or Path(template).is_file():
        return info.warning
    return (
        f"profile {model.profile} needs its publisher's prompt ({load_profile(model.profile).prompt_source}), but "
        f"template {template} is ours: its published figures are not reached; leave `template` out"
    )


def _window_too_large(name: str, size: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        "strategy.window_size",
        f"window_size {size} exceeds the {limit} passages that {name} reads at once; use at most {limit}",
        {"window_size": str(size), "limit": str(limit)},
    )


def _self_test(ranker: Ranker, model: ModelConfig, device: str) -> None:
    if not isinstance(model, IdentityModel | FusionModel | ApiModel):
        tolerance = self_test.tolerance(pick_device(device).type, ranker.info.precision)
        ranker = ranker.with_little_thinking() if isinstance(ranker, GenerationRanker) else ranker
        self_test.check(ranker, scoring_settings(model), model.path, tolerance)
