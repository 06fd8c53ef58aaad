"""Estimates of the tokens of a request's work, before its texts are tokenized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rerank.engine.job import MIN_WINDOW_TOKENS, ExpectedWork
from rerank.engine.request import RankRequest
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Query


def expected_work(
    request: RankRequest, infos: Mapping[str, RankerInfo], token_ratio: Callable[[str], float]
) -> dict[str, ExpectedWork]:
    """Model → its work for a request, from the texts and the bounds of the schedules.

    Args:
        infos: of the models by name.
        token_ratio: see Throughput.
    """
    passages, n, work = request.passages, len(request.candidates), dict[str, ExpectedWork]()
    for step in request.steps:
        info, cost = infos[step.model], step.strategy.cost(n)
        tokens_each = token_ratio(step.model) * window_tokens(info, passages, min(n, step.strategy.window_size))
        windows = (cost.min_windows + cost.max_windows) / 2
        rank_tokens = windows * max(MIN_WINDOW_TOKENS, tokens_each)
        work[step.model] = ExpectedWork(windows, rank_tokens, prepare_tokens(info, request.query, passages))
    return work


def prepare_tokens(info: RankerInfo, query: Query, passages: Sequence[Passage]) -> int:
    """Estimated tokens of the query and the passages to prepare."""
    return 2 + len(query.text) // 4 + sum(passage_tokens(info, passage) for passage in passages)


def passage_tokens(info: RankerInfo, passage: Passage) -> int:
    """Estimated tokens of a passage to prepare: 2 and one per 4 characters up to the ranker's limit; 1 for a vector."""
    return 1 if info.is_ready(passage) else text_tokens(info, passage)


def text_tokens(info: RankerInfo, passage: Passage) -> int:
    """Estimated tokens of a passage's text, as far as the ranker reads it."""
    return 2 + min(len(passage.text) // 4, info.max_passage_tokens)


def window_tokens(info: RankerInfo, passages: Sequence[Passage], n: int) -> float:
    """Estimated tokens of a window of n average passages, without the text around them."""
    if not info.reads_vectors:
        each = sum(passage_tokens(info, passage) for passage in passages) / max(1, len(passages))
        return min(n * each, info.max_window_tokens)
    missing = [text_tokens(info, passage) for passage in passages if passage.vector is None]
    encoded = min(len(missing), info.max_encoded_passages) * sum(missing) / max(1, len(missing))
    return min(n + encoded, info.max_window_tokens)
