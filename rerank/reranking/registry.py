"""The models of a service: resolves the models of a request, loads models on request, and unloads idle ones."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from rerank.config import ModelConfig
from rerank.config.loading import preranker_problem
from rerank.engine.engine import Engine
from rerank.engine.strategies import RankStage, Stages, describe, strategy_of
from rerank.errors import MAX_QUOTED_CHARS, CheckpointError, InvalidRequest, NotFound
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.failed import FailedRanker, UnloadedRanker
from rerank.reranking.load_models import LoadedModel, ModelLoader
from rerank.reranking.relevance import check_is_probability, check_min_relevance, gives_relevance
from rerank.types import (
    ANSWER_MARGIN_S,
    FirstStageKind,
    FirstStageWeight,
    OnFailure,
    RankOptions,
    ScoreKind,
    StrategyKind,
)
from rerank.util.memory import free_memory
from rerank.util.time_limit import in_thread

log = logging.getLogger(__name__)

#: Number of checks for idle models within the shortest `unload_after_s`.
_CHECKS_PER_TIMEOUT = 10
#: Largest number of attempts to free a model's memory.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A configured model, as `ListModels` reports it.

    Attributes:
        name: name of the model in requests.
        info: description of the ranker.
        default_strategy: description of the stages of a request without a strategy.
        is_default: whether the model answers requests that name no model.
        problem: why the model is not served; empty if it is served, or if a request will load it.
        gives_relevance: whether results have a relevance.
        is_loaded: whether the model is in memory, or in an inference server.
        load_s, memory_bytes, gpu_memory_bytes: seconds and bytes of the last loading, see LoadedModel.
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
        rankers: name → ranker. Requests for a FailedRanker raise its error. A model without a ranker has an
            UnloadedRanker until `set_loaded`.
        infos: name → description, in place of that of the ranker.

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
        kinds = list(FirstStageKind)
        self._weights = {model.name: {kind: model.weight_for(kind) for kind in kinds} for model in models}
        self._costs = dict.fromkeys(self._models, (0.0, 0, 0))
        self._complete()

    def set_loaded(self, name: str, loaded: LoadedModel) -> None:
        """Sets the ranker of a model, and the time and memory of loading it."""
        self.rankers[name], self.infos[name] = loaded.ranker, loaded.info
        self._costs[name] = (loaded.load_s, loaded.memory_bytes, loaded.gpu_memory_bytes)
        self._complete()
        # If the only model failed, the error that ends the service has the reason.
        if isinstance(loaded.ranker, FailedRanker) and len(self._models) > 1:
            log.error("model %s is not served: %s", name, loaded.ranker.problem)

    def is_served(self, name: str) -> bool:
        """True if a model is loaded and did not fail."""
        return not isinstance(self.rankers[name], FailedRanker)

    def unload(self, name: str) -> None:
        """Removes the ranker of a model, and keeps its description."""
        self.rankers[name] = UnloadedRanker(name, self._models[name].ranker)

    def _complete(self) -> None:
        """Computes default windows and default stages, which depend on the descriptions of all models."""
        self._window_sizes = {name: self._default_window_size(name) for name in self._models}
        of_models = {name: self._models_of(RankOptions(name)) for name in self._models}
        self._default_stages = {name: self._stages(models, FirstStageKind.AUTO) for name, models in of_models.items()}

    def describe(self) -> list[ModelDescription]:
        """The configured models, the default one first."""
        return [
            self._describe(*default_stage, number == 0)
            for number, default_stage in enumerate(self._default_stages.items())
        ]

    def _describe(self, name: str, stages: Stages, is_default: bool) -> ModelDescription:
        gives, is_loaded = gives_relevance(stages, self.infos), not isinstance(self.rankers[name], UnloadedRanker)
        # Before a model is loaded, it is not known whether it reads an instruction.
        info = self.infos[name] if is_loaded else replace(self.infos[name], reads_instruction=False)
        shown = name, info, describe(stages), is_default, self._problem(name), gives, is_loaded
        return ModelDescription(*shown, *self._costs[name])

    def unloaded_models_of(self, options: RankOptions) -> list[str]:
        """The names of a request's models that are not loaded. Raises: NotFound, InvalidRequest; see `resolve`."""
        return [name for name, _ in self._models_of(options) if isinstance(self.rankers[name], UnloadedRanker)]

    def resolve(
        self, options: RankOptions, instruction: str = "", weight: FirstStageWeight = FirstStageKind.AUTO
    ) -> Stages:
        """The stages of a request. Its model is the last stage; options that it lacks are the model's defaults.

        Args:
            instruction: instruction of the query.
            weight: weight of the first stage if the options have none.

        Raises:
            NotFound: there is no such model.
            CheckpointError, SelfTestFailed, ModelLoading: the model, or the preranker of a cascade, is not served, and
                `options.on_failure` is an error.
            InvalidRequest: the preranker is unknown, the window is too large, the model reads no instruction, or it
                gives no relevance for `min_relevance`.
        """
        for name, _ in self._models_of(options):
            ranker = self.rankers[name]
            if isinstance(ranker, FailedRanker) and options.on_failure != OnFailure.FIRST_STAGE:
                raise ranker.error
        stages = self.check(options, instruction, weight)
        if options.min_relevance is not None:
            check_min_relevance(options.min_relevance, stages, self.infos, self._default_stages)
        return stages

    def check(
        self, options: RankOptions, instruction: str = "", weight: FirstStageWeight = FirstStageKind.AUTO
    ) -> Stages:
        """The stages of a request whose models may not be loaded yet.

        Arguments and errors are those of `resolve`, without the errors for which a model must be loaded.
        """
        models = self._models_of(options)
        if options.min_relevance is not None:
            check_is_probability(options.min_relevance)
        if instruction and not self.infos[models[0][0]].reads_instruction:
            raise self._instruction_not_read(models[0][0])
        given = cast(FirstStageWeight | None, options.first_stage_weight)
        return self._stages(models, weight if given is None else given)

    def _models_of(self, options: RankOptions) -> list[tuple[str, RankOptions]]:
        """(name, options) of the model of a request and, in a cascade, of its prerankers.

        A preranker ranks by its default strategy, which may be a cascade of two models.
        """
        models = [(self._name(options), options)]
        while self._kind(*models[-1]) is StrategyKind.CASCADE:
            name, options = models[-1]
            preranker = options.preranker or self._models[name].preranker
            if problem := preranker_problem(preranker, name, self._models):
                raise InvalidRequest("strategy.preranker", problem, {"preranker": preranker})
            models.append((preranker, RankOptions()))
        name, options = models[-1]
        if options.preranker:
            problem = f"the strategy {self._kind(name, options)} has no preranker; leave preranker out, or set the"
            raise InvalidRequest("strategy.preranker", f"{problem} strategy cascade", {"preranker": options.preranker})
        return models

    def _kind(self, name: str, options: RankOptions) -> StrategyKind:
        return StrategyKind(options.strategy or self._models[name].strategy)

    def _name(self, options: RankOptions) -> str:
        name = options.model or next(iter(self._models))
        if name not in self._models:
            way_out = "use one of them; over HTTP, the setting http.model_aliases maps the names of other services"
            known = ", ".join(self._models)
            raise NotFound(f"model {name[:MAX_QUOTED_CHARS]!r} is not one of {known}; {way_out}", {"model": name})
        return name

    def _default_window_size(self, name: str) -> int:
        """The configured window size; without one the default, or the largest that the model reads if it is smaller."""
        model = self._models[name]
        if "window_size" in model.model_fields_set:
            return model.window_size
        return min(model.read_window_size(), self.infos[name].max_window_size)

    def _problem(self, name: str) -> str:
        """Why requests for the model fail by default; empty if they do not."""
        model, problem = self._models[name], self.rankers[name].problem
        if not problem and model.strategy is StrategyKind.CASCADE and (other := self._problem(model.preranker)):
            return f"its preranker {model.preranker} is not served: {other}"
        return problem

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

    def _stages(self, models: Sequence[tuple[str, RankOptions]], weight: FirstStageWeight) -> Stages:
        """The stages of the models of `_models_of`, in reverse order: the request's model is the last stage."""
        stages = list[RankStage]()
        for name, options in reversed(models):
            info = self.infos[name]
            size = options.window_size or self._window_sizes[name]
            if size > info.max_window_size:
                raise _window_too_large(name, size, info.max_window_size)
            strategy = strategy_of(self._kind(name, options), size, options.stride or size // 2)
            given = FirstStageKind.NEURAL if stages else weight  # a preranker is a neural first stage
            stage_weight = given if isinstance(given, float) else self._weights[name][given]
            stage_weight = stage_weight if info.reorders else 0.0
            has_scores = not stage_weight or info.score_kind is not ScoreKind.RANK
            stages.append(RankStage(name, strategy, stage_weight, has_scores))
        return tuple(stages)


class LazyModels:
    """Loads models on request, and unloads idle ones. All methods run on the event loop.

    Args:
        models: settings of all models.
        registry, engine: the registry and the engine in which the ranker of a loaded model is set.
        loader: loads a model, which it is asked for on a new thread.
    """

    def __init__(
        self, models: Sequence[ModelConfig], registry: ModelRegistry, engine: Engine, loader: ModelLoader
    ) -> None:
        self._models = {model.name: model for model in models}
        self._registry, self._engine, self._loader = registry, engine, loader
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._in_use = Counter[str]()
        self._used_s: dict[str, float] = {}
        self._unloading: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts the checks for idle models if a model has `unload_after_s`."""
        limits = {model.name: model.unload_after_s for model in self._models.values() if model.unload_after_s}
        if limits:
            self._used_s = dict.fromkeys(limits, _now_s())
            self._unloading = asyncio.create_task(self._unload_idle(limits))

    async def close(self) -> None:
        """Stops waiting for models that are being loaded. Their threads do not keep the process alive."""
        tasks = [*self._loading.values(), *([self._unloading] if self._unloading else [])]
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def ready(
        self, options: RankOptions, instruction: str, weight: FirstStageWeight, deadline_s: float
    ) -> AsyncIterator[Stages]:
        """Loads the models of a request, keeps them in memory during the block, and yields the request's stages.

        If the deadline comes before a model is loaded, the request fails with ModelLoading, and loading continues.

        Args:
            options, instruction, weight: see `ModelRegistry.resolve`.
            deadline_s: time on the event loop's clock; infinite for none.

        Raises:
            RerankError: see `ModelRegistry.resolve`.
        """
        if unloaded := self._registry.unloaded_models_of(options):
            self._registry.check(options, instruction, weight)  # a request that is refused loads nothing
            tasks = [self._loading.get(name) or self._start(name) for name in unloaded]
            # Twice the margin, because the answer after a failure takes time, too.
            left_s = deadline_s - 2 * ANSWER_MARGIN_S - _now_s()
            await asyncio.wait(tasks, timeout=None if math.isinf(left_s) else max(0.0, left_s))
        stages = self._registry.resolve(options, instruction, weight)
        for stage in stages:
            self._in_use[stage.model] += 1
        try:
            yield stages
        finally:
            for stage in stages:
                self._in_use[stage.model] -= 1
                self._used_s[stage.model] = asyncio.get_running_loop().time()

    def _start(self, name: str) -> asyncio.Task[None]:
        log.info("model %s is being loaded", name)
        self._loading[name] = task = asyncio.create_task(self._load(name))
        task.add_done_callback(lambda _: self._loading.pop(name))
        return task

    async def _load(self, name: str) -> None:
        outcome, _ = in_thread(partial(self._loader.load, self._models[name]))
        loaded = await asyncio.wrap_future(outcome)
        await self._engine.replace_ranker(name, loaded.ranker, loaded.info)
        self._registry.set_loaded(name, loaded)
        self._used_s[name] = _now_s()
        memory = loaded.memory_bytes / 1e9, loaded.gpu_memory_bytes / 1e9
        log.info("model %s is loaded: %.1f s, %.2f GB, and %.2f GB of GPU", name, loaded.load_s, *memory)

    async def _unload_idle(self, limits: dict[str, float]) -> None:
        while True:
            await asyncio.sleep(min(limits.values()) / _CHECKS_PER_TIMEOUT)
            for name, limit_s in limits.items():
                is_idle = not self._in_use[name] and _now_s() - self._used_s[name] > limit_s
                if is_idle and self._registry.is_served(name):
                    await self._unload(name)

    async def _unload(self, name: str) -> None:
        ranker = weakref.ref(self._registry.rankers[name])
        self._registry.unload(name)
        await self._engine.replace_ranker(name, self._registry.rankers[name], self._registry.infos[name])
        for _ in range(_TRIES):  # a thread that is about to end may still refer to the model
            await asyncio.to_thread(free_memory)
            if ranker() is None:
                break
            await asyncio.sleep(1)
        log.info("model %s is unloaded; the next request for it loads it again", name)


def load_models(models: Sequence[ModelConfig], loader: ModelLoader) -> ModelRegistry:
    """Loads and self-tests the models with `load: start`. A model that cannot be loaded is not served.

    Raises:
        CheckpointError: no model can be loaded.
    """
    registry = ModelRegistry(models, {})
    for model in models:
        if model.load == "start":
            log.info("model %s (%s) is being loaded", model.name, model.ranker)
            registry.set_loaded(model.name, loader.load(model))
    rankers = registry.rankers.values()
    failed = [ranker for ranker in rankers if isinstance(ranker, FailedRanker) and ranker.kind is CheckpointError]
    if failed and len(failed) == len(rankers):
        raise failed[0].error
    return registry


def _window_too_large(name: str, size: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        "strategy.window_size",
        f"window_size {size} exceeds the {limit} passages that {name} reads at once; use at most {limit}",
        {"window_size": str(size), "limit": str(limit)},
    )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
