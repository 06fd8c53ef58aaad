"""The place of a model that failed its self-test: it has a description, and fails whatever it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from rerank.errors import SelfTestFailed
from rerank.rankers.base import RankerInfo
from rerank.types import EncodedWindow, Passage, Query, Window


@dataclass
class FailedRanker:
    """A ranker in the place of a loaded model that failed its self-test. All its methods raise SelfTestFailed.

    Attributes:
        name: of the model in the configuration.
        info: of the model that failed.
        problem: why it failed.
    """

    name: str
    info: RankerInfo
    problem: str

    @property
    def error(self) -> SelfTestFailed:
        """The error of a request that names the model."""
        return SelfTestFailed(f"model {self.name!r} is not served; {self.problem}", {"model": self.name})

    def prepare(self, query: Query, passages: Sequence[Passage]) -> NoReturn:
        raise self.error

    def encode(self, window: Window) -> NoReturn:
        raise self.error

    def rank(self, windows: Sequence[EncodedWindow]) -> NoReturn:
        raise self.error
