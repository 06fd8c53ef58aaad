"""Keeps the first-stage order: the baseline, the degraded mode, and a double for tests."""

from __future__ import annotations

from collections.abc import Sequence

from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Prepared, Query, ScoreKind, Window, WindowRanking


class IdentityRanker:
    """Reads nothing and changes nothing."""

    info = RankerInfo(
        kind="identity",
        model_id="identity",
        model_revision="",
        template_sha256="",
        max_window_size=1_000_000,
        score_kind=ScoreKind.RANK,
        reads_passages=False,
    )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        return Prepared(query, tuple(passages))

    def tokens(self, window: Window) -> int:
        return 0

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        return [WindowRanking(tuple(float(-place) for place in range(len(w.passages)))) for w in windows]
