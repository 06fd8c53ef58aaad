"""The cost of a request for a model, in tokens: estimated from its texts, then measured as its windows are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rerank.engine.strategies import Strategy
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Query

#: The least that a window counts, as scheduling, encoding and reporting it take time.
MIN_WINDOW_TOKENS = 16


@dataclass
class ModelCost:
    """The tokens of a request for one model.

    Attributes:
        query: to prepare the query.
        passages: to prepare each candidate; 1 where nothing is to be computed.
        windows: the expected number of windows.
        rank: positions of the model's input that remain, with those that are running, as estimated before any window
            is encoded.
        encoded, encoded_tokens: the windows that were encoded so far, and their tokens.
    """

    query: int
    passages: Sequence[int]
    windows: float
    rank: float
    encoded: int = 0
    encoded_tokens: int = 0

    @classmethod
    def of(cls, info: RankerInfo, query: Query, passages: Sequence[Passage], strategy: Strategy) -> ModelCost:
        """Estimates the cost from the texts and the bounds of the schedule: a token is some 4 characters."""
        texts = [2 + min(len(passage.text) // 4, info.max_passage_tokens) for passage in passages]
        prepared = [1 if info.is_ready(passage) else tokens for passage, tokens in zip(passages, texts, strict=True)]
        bounds = strategy.cost(len(passages))
        windows = (bounds.min_windows + bounds.max_windows) / 2
        n = min(len(passages), strategy.window_size)
        if info.needs_vectors:  # a passage takes a position, and the texts without a vector are read as well
            missing = [tokens for passage, tokens in zip(passages, texts, strict=True) if passage.vector is None]
            each = n + min(len(missing), info.max_encoded_passages) * _mean(missing)
        else:
            each = n * _mean(prepared)
        each = max(MIN_WINDOW_TOKENS, min(each, info.max_window_tokens))
        return cls(2 + len(query.text) // 4, prepared, windows, windows * each)

    @property
    def prepare(self) -> int:
        """To prepare the query and all passages."""
        return self.query + sum(self.passages)

    def add_windows(self, windows: int, tokens: int) -> float:
        """Counts windows that were encoded and are ranked next; returns what remains with them.

        Later windows are expected to be like the average of those encoded so far.
        """
        self.encoded += windows
        self.encoded_tokens += tokens
        return max(0.0, self.windows - self.encoded) * (self.encoded_tokens / self.encoded) + tokens


def slices(passages: Sequence[Passage], tokens: Sequence[int], max_tokens: float) -> list[list[int]]:
    """Divides positions of passages into slices of at most `max_tokens`, or of one text. Equal texts share one.

    They are in the order of their lengths, so that a batch of a slice needs little padding.
    """
    texts = [passage.text for passage in passages]
    by_length = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position]))
    found, free_tokens = list[list[int]](), 0.0
    for _, same in groupby(by_length, key=texts.__getitem__):  # compares neighbours, which is faster than hashing all
        positions = list(same)
        needed = sum(tokens[position] for position in positions)
        if needed > free_tokens or not found:
            found.append([])
            free_tokens = max_tokens
        found[-1] += positions
        free_tokens -= needed
    return found


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / max(1, len(numbers))
