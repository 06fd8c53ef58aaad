"""Measured rates of the models, for the sizes of slices, hang limits and retry times. No rate refuses a request."""

from __future__ import annotations

import math

from rerank.engine.job import ModelStage

#: A rate is an average over about this many of the latest seconds in which its stage worked.
_AVERAGED_S = 2.0


class Throughput:
    """Tokens per second of each stage of each model.

    A batch counts by its duration: small ones, whose time is mostly a fixed cost, and those without anything to compute
    hardly change the rate of large ones.
    """

    def __init__(self) -> None:
        #: The tokens and seconds of the latest batches, of which earlier ones count less and less.
        self._latest: dict[ModelStage, tuple[float, float]] = {}

    def observe(self, model_stage: ModelStage, tokens: float, seconds: float) -> None:
        """Records a batch. The first one of a stage warms its model up and is not counted."""
        if model_stage not in self._latest:
            self._latest[model_stage] = (0.0, 0.0)
            return
        before_tokens, before_s = self._latest[model_stage]
        keep = math.exp(-seconds / _AVERAGED_S)
        self._latest[model_stage] = (keep * before_tokens + tokens, keep * before_s + seconds)

    def tokens_per_s(self, model_stage: ModelStage) -> float | None:
        """Returns the rate of a stage; None before it is measured."""
        tokens, seconds = self._latest.get(model_stage, (0.0, 0.0))
        return tokens / seconds if seconds else None
