"""The identity ranker keeps the first-stage order: a baseline, and a fallback when no model is to run."""

from __future__ import annotations

from collections.abc import Sequence

from rerank.rankers.base import Ranker, RankerInfo
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Window, WindowRanking


class IdentityRanker(Ranker):
    """Reads no passage and keeps the order of every window."""

    info = RankerInfo(
        kind="identity",
        model_id="identity",
        model_revision="",
        template_sha256="",
        max_window_size=1_000_000,
        score_kind=ScoreKind.RANK,
        reorders=False,
        supports_batching=True,
        max_passage_tokens=0,
        max_window_tokens=0,
    )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        return PreparedTexts(query, tuple(passages))

    def encode(self, window: Window) -> Window:
        return window

    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        return [WindowRanking(tuple(float(-index) for index in range(len(one.passages)))) for one in parts]
