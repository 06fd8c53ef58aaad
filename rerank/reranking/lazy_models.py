"""Loads models when requests first ask for them, and frees the memory of those that nobody asks for any more."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from rerank.config import ModelConfig
from rerank.engine.engine import Engine
from rerank.engine.strategies import Stages
from rerank.reranking.load_models import ModelLoader
from rerank.reranking.registry import ModelRegistry
from rerank.types import ANSWER_MARGIN_S, FirstStageWeight, RankOptions
from rerank.util.memory import free_memory
from rerank.util.time_limit import in_thread

log = logging.getLogger(__name__)

#: Checks for idle models per shortest `unload_after_s`.
_LOOKS = 10
#: Attempts to free a model's memory.
_TRIES = 5


class LazyModels:
    """The models of a service that are not in memory all the time. All methods run on the event loop.

    Args:
        models: their settings.
        registry, engine: where a loaded model is put.
        loader: loads a model, on a new thread.
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
        """Begins to look for idle models, if any is to be unloaded."""
        limits = {model.name: model.unload_after_s for model in self._models.values() if model.unload_after_s}
        if limits:
            self._used_s = dict.fromkeys(limits, _now_s())
            self._unloading = asyncio.create_task(self._unload_idle(limits))

    async def close(self) -> None:
        """Ends the wait for models; their threads do not keep the process alive."""
        tasks = [*self._loading.values(), *([self._unloading] if self._unloading else [])]
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def ready(
        self, options: RankOptions, instruction: str, weight: FirstStageWeight, deadline_s: float
    ) -> AsyncIterator[Stages]:
        """Loads the models of a request, and keeps them in memory during the block, which gets the request's stages.

        If the deadline comes before they are loaded, they answer with ModelLoading; they are loaded all the same.

        Raises: see ModelRegistry.resolve, whose arguments these are.
        """
        if unloaded := self._registry.unloaded_models_of(options):
            tasks = [self._loading.get(name) or self._start(name) for name in unloaded]
            # Twice the margin, as an answer instead of a failure needs some of the time, too.
            left_s = deadline_s - 2 * ANSWER_MARGIN_S - _now_s()
            await asyncio.wait(tasks, timeout=None if math.isinf(left_s) else max(0.0, left_s))
        stages = self._registry.resolve(options, instruction, weight)
        names = [stage.model for stage in stages]
        self._in_use.update(names)
        try:
            yield stages
        finally:
            self._in_use.subtract(names)
            self._used_s |= dict.fromkeys(names, _now_s())

    def _start(self, name: str) -> asyncio.Task[None]:
        log.info("model %s is being loaded", name)
        self._loading[name] = task = asyncio.create_task(self._load(name))
        task.add_done_callback(lambda _: self._loading.pop(name))
        return task

    async def _load(self, name: str) -> None:
        outcome, _ = in_thread(partial(self._loader.load, self._models[name]))
        loaded = await asyncio.wrap_future(outcome)
        await self._engine.put(name, loaded.ranker, loaded.info)
        self._registry.put(name, loaded)
        self._used_s[name] = _now_s()
        memory = loaded.memory_bytes / 1e9, loaded.gpu_memory_bytes / 1e9
        log.info("model %s is loaded: %.1f s, %.2f GB, and %.2f GB of GPU", name, loaded.load_s, *memory)

    async def _unload_idle(self, limits: dict[str, float]) -> None:
        while True:
            await asyncio.sleep(min(limits.values()) / _LOOKS)
            for name, limit_s in limits.items():
                is_idle = not self._in_use[name] and _now_s() - self._used_s[name] > limit_s
                if is_idle and self._registry.is_served(name):
                    await self._unload(name)

    async def _unload(self, name: str) -> None:
        ranker = weakref.ref(self._registry.rankers[name])
        self._registry.unload(name)
        await self._engine.put(name, self._registry.rankers[name], self._registry.infos[name])
        for _ in range(_TRIES):  # a thread that is about to end may still refer to it
            await asyncio.to_thread(free_memory)
            if ranker() is None:
                break
            await asyncio.sleep(1)
        log.info("model %s is unloaded; the next request for it loads it again", name)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
