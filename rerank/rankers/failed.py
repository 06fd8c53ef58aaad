"""Placeholders for models that failed to load or are not loaded yet: every call raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from rerank.errors import CheckpointError, ModelLoading, SelfTestFailed
from rerank.rankers.base import Ranker, RankerInfo
from rerank.types import Passage, Query, ScoreKind, Window

#: A number of passages that no request exceeds.
_ANY_WINDOW = 1_000_000


@dataclass
class FailedRanker(Ranker):
    """Replaces a model that cannot be loaded or failed its self-test. All its methods raise `error`.

    Attributes:
        name: the model's name in the configuration.
        info: description of the model; `unknown_info` for a model that could not be loaded.
        problem: why it failed.
        kind: class of `error`.
    """

    name: str
    info: RankerInfo
    problem: str
    kind: type[CheckpointError | SelfTestFailed] = SelfTestFailed

    @property
    def error(self) -> CheckpointError | SelfTestFailed | ModelLoading:
        """The error of a request that names the model."""
        return self.kind(f"model {self.name!r} is not served; {self.problem}", {"model": self.name})

    def prepare(self, query: Query, passages: Sequence[Passage]) -> NoReturn:
        raise self.error

    def encode(self, window: Window) -> NoReturn:
        raise self.error

    def score(self, parts: Sequence[Window]) -> NoReturn:
        raise self.error


class UnloadedRanker(FailedRanker):
    """Replaces a model that is loaded on request, until it is loaded. Until then, calls fail."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(name, replace(unknown_info(kind, name), max_passage_tokens=1_000_000), problem="")

    @property
    def error(self) -> ModelLoading:
        """The error of a request that does not wait until the model is loaded."""
        wait_s = ModelLoading.retry_after_s
        return ModelLoading(f"model {self.name!r} is being loaded; ask again in {wait_s:g} s", {"model": self.name})


def unknown_info(kind: str, model_id: str) -> RankerInfo:
    """The description of a model that could not be loaded. Its limits allow any request."""
    return RankerInfo(
        kind=kind,
        model_id=model_id,
        model_revision="",
        template_sha256="",
        max_window_size=_ANY_WINDOW,
        score_kind=ScoreKind.WINDOW_LOG_PROB,
        reads_instruction=True,
        max_passage_tokens=1,  # so that no long texts are kept for a model that reads none
    )
