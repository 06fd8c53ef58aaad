"""Registry of the models that are served: it resolves a request's options into the stages that its models rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rerank.config import ModelConfig
from rerank.config.loading import preranker_problem
from rerank.engine.strategies import RankStage, Stages, describe, strategy_of
from rerank.errors import MAX_QUOTED_CHARS, InvalidRequest, NotFound
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.failed import FailedRanker, UnloadedRanker
from rerank.reranking.relevance import check_min_relevance, gives_relevance
from rerank.types import FirstStageKind, OnFailure, RankOptions, ScoreKind, StrategyKind


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A ranker with its description, and what loading it took.

    Attributes:
        memory_bytes: by how much the process grew; 0: not known, or not loaded yet.
        gpu_memory_bytes: by how much it grew on GPUs, with what it keeps to read the first batches.
    """

    ranker: Ranker
    info: RankerInfo
    load_s: float = 0.0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A configured model, as `ListModels` reports it.

    Attributes:
        name: in requests.
        info: of its ranker.
        is_default: it answers requests that name no model.
        problem: why it is not served; empty if it is, or will be once it is asked for.
        is_loaded: it is in memory, or in an inference server.
        load_s, memory_bytes, gpu_memory_bytes: what loading it took the last time, see LoadedModel.
    """

    name: str
    info: RankerInfo
    default_strategy: str
    is_default: bool
    problem: str = ""
    gives_relevance: bool = False
    is_loaded: bool = True
    load_s: float = 0.0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0


class ModelRegistry:
    """The configured models by name; the first one is the default.

    Args:
        models: configuration of all models.
        rankers: their rankers. Requests that name a FailedRanker raise its error. A model without a ranker is an
            UnloadedRanker until `put` gives it one.
        infos: their descriptions; None: the rankers' own.

    Raises:
        InvalidRequest: the default window of a model is larger than its ranker reads.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        rankers: Mapping[str, Ranker],
        infos: Mapping[str, RankerInfo] | None = None,
    ) -> None:
        self._models = {model.name: model for model in models}
        unloaded = {name: UnloadedRanker(name, model.ranker) for name, model in self._models.items()}
        self.rankers: dict[str, Ranker] = {**unloaded, **rankers}
        self.infos = {name: ranker.info for name, ranker in self.rankers.items()} | dict(infos or {})
        self._costs = dict.fromkeys(self._models, (0.0, 0, 0))
        self._complete()

    def put(self, name: str, loaded: LoadedModel) -> None:
        """Gives a model its ranker, and adds what loading took to its description."""
        self.rankers[name], self.infos[name] = loaded.ranker, loaded.info
        self._costs[name] = (loaded.load_s, loaded.memory_bytes, loaded.gpu_memory_bytes)
        self._complete()

    def is_served(self, name: str) -> bool:
        """Returns True if a model is loaded, and not failed."""
        return not isinstance(self.rankers[name], FailedRanker)

    def unload(self, name: str) -> None:
        """Takes a model's ranker away; what is known of it stays in its description."""
        self.rankers[name] = UnloadedRanker(name, self._models[name].ranker)

    def _complete(self) -> None:
        """Makes what depends on the descriptions of all models."""
        self._window_sizes = {name: self._default_window_size(name) for name in self._models}
        self._default_stages = {name: self._stages(name, RankOptions()) for name in self._models}

    def describe(self) -> list[ModelDescription]:
        """Lists the configured models, the default one first."""
        return [
            self._describe(*default_stage, number == 0)
            for number, default_stage in enumerate(self._default_stages.items())
        ]

    def _describe(self, name: str, stages: Stages, is_default: bool) -> ModelDescription:
        gives, is_loaded = gives_relevance(stages, self.infos), not isinstance(self.rankers[name], UnloadedRanker)
        info = self.infos[name] if is_loaded else replace(self.infos[name], reads_instruction=False)  # it is not known
        shown = name, info, describe(stages), is_default, self._problem(name), gives, is_loaded
        return ModelDescription(*shown, *self._costs[name])

    def unloaded_models_of(self, options: RankOptions) -> list[str]:
        """Returns the models of a request that are not loaded. Raises: NotFound, InvalidRequest; see `resolve`."""
        stages = self._stages(self._name(options), options)
        return [stage.model for stage in stages if isinstance(self.rankers[stage.model], UnloadedRanker)]

    def resolve(self, options: RankOptions, instruction: str = "") -> Stages:
        """Makes the stages of a request, completed from the defaults of its model, which the last stage has.

        Raises:
            NotFound: there is no such model.
            CheckpointError, SelfTestFailed, ModelLoading: the model, or the preranker of a cascade, is not served, and
                this is to be an error.
            InvalidRequest: the preranker is unknown, the window is too large, the prompt has no instruction, or there
                is no relevance for `min_relevance`.
        """
        name = self._name(options)
        self._check_served(name, options)
        if instruction and not self.infos[name].reads_instruction:
            raise self._instruction_not_read(name)
        stages = self._stages(name, options)
        for stage in stages:
            self._check_served(stage.model, options)
        if options.min_relevance is not None:
            check_min_relevance(options.min_relevance, stages, self.infos, self._default_stages)
        return stages

    def _name(self, options: RankOptions) -> str:
        name = options.model or next(iter(self._models))
        if name not in self._models:
            way_out = "use one of them; over HTTP, the setting http.model_aliases maps the names of other services"
            known = ", ".join(self._models)
            raise NotFound(f"model {name[:MAX_QUOTED_CHARS]!r} is not one of {known}; {way_out}", {"model": name})
        return name

    def _default_window_size(self, name: str) -> int:
        """Returns the configured window size, or else the largest one up to the default that the model reads."""
        model = self._models[name]
        if "window_size" in model.model_fields_set:
            return model.window_size
        return min(model.read_window_size(), self.infos[name].max_window_size)

    def _problem(self, name: str) -> str:
        """Says why requests for the model fail by default; empty if they do not."""
        model, problem = self._models[name], self._own_problem(name)
        if not problem and model.strategy is StrategyKind.CASCADE and (other := self._problem(model.preranker)):
            return f"its preranker {model.preranker} is not served: {other}"
        return problem

    def _own_problem(self, name: str) -> str:
        """Says why the model itself cannot rank; empty if it can."""
        return self.rankers[name].problem

    def _check_served(self, name: str, options: RankOptions) -> None:
        ranker = self.rankers[name]
        if isinstance(ranker, FailedRanker) and options.on_failure != OnFailure.FIRST_STAGE:
            raise ranker.error

    def _instruction_not_read(self, name: str) -> InvalidRequest:
        others = [
            other
            for other, info in self.infos.items()
            if info.reads_instruction and not isinstance(self.rankers[other], FailedRanker)
        ]
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

    def _stages(self, name: str, options: RankOptions) -> Stages:
        default, limit = self._models[name], self.infos[name].max_window_size
        size = options.window_size or self._window_sizes[name]
        if size > limit:
            raise _window_too_large(name, size, limit)
        kind = StrategyKind(options.strategy or default.strategy)
        if options.preranker and kind is not StrategyKind.CASCADE:
            problem = f"the strategy {kind} has no preranker; leave preranker out, or set the strategy cascade"
            raise InvalidRequest("strategy.preranker", problem, {"preranker": options.preranker})
        strategy = strategy_of(kind, size, options.stride or size // 2)
        weight = options.first_stage_weight
        if kind is StrategyKind.CASCADE:
            weight = FirstStageKind.NEURAL  # of the preranker's list
        if not isinstance(weight, float):
            weight = default.weight_for(FirstStageKind(weight or FirstStageKind.AUTO))
        info = self.infos[name]
        weight = weight if info.reads_passages else 0.0
        stage = RankStage(name, strategy, weight, has_scores=not weight or info.score_kind is not ScoreKind.RANK)
        return (*self._preranker_stages(name, options), stage) if kind is StrategyKind.CASCADE else (stage,)

    def _preranker_stages(self, model: str, options: RankOptions) -> Stages:
        """Makes the stages of a cascade's preranker: its default strategy, which may be a cascade of two models."""
        preranker = options.preranker or self._models[model].preranker
        if problem := preranker_problem(preranker, model, self._models):
            raise InvalidRequest("strategy.preranker", problem, {"preranker": preranker})
        return self._stages(preranker, RankOptions(first_stage_weight=options.first_stage_weight))


def _window_too_large(name: str, size: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        "strategy.window_size",
        f"window_size {size} exceeds the {limit} passages that {name} reads at once; use at most {limit}",
        {"window_size": str(size), "limit": str(limit)},
    )
