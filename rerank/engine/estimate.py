"""Estimates of the tokens of a request's work, before its texts are tokenized, and slices of so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from rerank.engine.job import MIN_WINDOW_TOKENS, ExpectedWork, RankJob
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Query


def expected_work(job: RankJob, infos: Mapping[str, RankerInfo]) -> dict[str, ExpectedWork]:
    """Estimates the work of each model for a request, from the texts and the bounds of the schedules.

    Args:
        infos: of the models by name.
    """
    passages, n, work = job.candidates, len(job.candidates), dict[str, ExpectedWork]()
    for step in job.steps:
        info, cost = infos[step.model], step.strategy.cost(n)
        tokens_each = window_tokens(info, passages, min(n, step.strategy.window_size))
        windows = (cost.min_windows + cost.max_windows) / 2
        rank_tokens = windows * max(MIN_WINDOW_TOKENS, tokens_each)
        work[step.model] = ExpectedWork(windows, rank_tokens, prepare_tokens(info, job.query, passages))
    return work


def prepare_tokens(info: RankerInfo, query: Query, passages: Sequence[Passage]) -> int:
    """Estimates the tokens of the query and the passages to prepare."""
    return 2 + len(query.text) // 4 + sum(passage_tokens(info, passage) for passage in passages)


def passage_tokens(info: RankerInfo, passage: Passage) -> int:
    """Estimates the tokens of a passage to prepare; 1 if nothing is to be computed for it."""
    return 1 if info.is_ready(passage) else text_tokens(info, passage)


def text_tokens(info: RankerInfo, passage: Passage) -> int:
    """Estimates the tokens that the ranker reads of a text: 2, and one per 4 characters up to its limit."""
    return 2 + min(len(passage.text) // 4, info.max_passage_tokens)


def window_tokens(info: RankerInfo, passages: Sequence[Passage], n: int) -> float:
    """Estimates the tokens of a window of n average passages, without the text around them."""
    if not info.reads_vectors:
        average = sum(passage_tokens(info, passage) for passage in passages) / max(1, len(passages))
        return min(n * average, info.max_window_tokens)
    missing = [text_tokens(info, passage) for passage in passages if passage.vector is None]
    encoded = min(len(missing), info.max_encoded_passages) * sum(missing) / max(1, len(missing))
    return min(n + encoded, info.max_window_tokens)


def slices(passages: Sequence[Passage], tokens: Callable[[Passage], int], max_tokens: float) -> list[list[int]]:
    """Divides positions of passages into slices of at most so many tokens, or of one text. Equal texts share one.

    They are in the order of their lengths, so that a batch of a slice needs little padding.
    """
    texts = [passage.text for passage in passages]
    by_length = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position]))
    found, free_tokens = list[list[int]](), 0.0
    for _, same in groupby(by_length, key=texts.__getitem__):  # compares neighbours, which is faster than hashing all
        positions = list(same)
        needed = sum(tokens(passages[position]) for position in positions)
        if needed > free_tokens or not found:
            found.append([])
            free_tokens = max_tokens
        found[-1] += positions
        free_tokens -= needed
    return found
