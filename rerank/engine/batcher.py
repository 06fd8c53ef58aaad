"""Windows that wait → the next batch, under a token budget. Pure: no torch, no thread, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rerank.errors import Overloaded

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A window that waits. `is_cancelled` is asked when a batch forms: nobody runs what nobody waits for."""

    payload: T
    model: str
    tokens: int
    is_cancelled: Callable[[], bool]


class Batcher(Generic[T]):
    """The oldest window first; beside it those of the same model that fit, in the order in which they came.

    Args:
        max_batch_tokens: the budget of a batch. A window that alone exceeds it runs alone: with
            max_batch_tokens=1000, ten windows of 100 tokens run together, one of 1500 by itself.
        max_queue_tokens: the bound on what waits, over all models.
    """

    def __init__(self, max_batch_tokens: int, max_queue_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._max_queue_tokens = max_queue_tokens
        self._waiting: deque[Entry[T]] = deque()
        self._queued_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def queued_tokens(self) -> int:
        return self._queued_tokens

    def add(self, entry: Entry[T]) -> None:
        """Raises: Overloaded when something waits already and the bound would be passed."""
        if self._waiting and self._queued_tokens + entry.tokens > self._max_queue_tokens:
            self._drop_cancelled()
        if self._waiting and self._queued_tokens + entry.tokens > self._max_queue_tokens:
            raise Overloaded(
                f"{self._queued_tokens} tokens wait already; {entry.tokens} more exceed the queue's "
                f"{self._max_queue_tokens}; try again later",
                retry_after_s=1.0,
                metadata={"queued_tokens": str(self._queued_tokens), "limit": str(self._max_queue_tokens)},
            )
        self._waiting.append(entry)
        self._queued_tokens += entry.tokens

    def next_batch(self) -> list[Entry[T]]:
        """The oldest window and those of the same model that fit beside it; empty when nothing waits."""
        self._drop_cancelled()
        batch: list[Entry[T]] = []
        left: deque[Entry[T]] = deque()
        tokens = 0
        for entry in self._waiting:
            fits = not batch or (entry.model == batch[0].model and tokens + entry.tokens <= self._max_batch_tokens)
            if fits:
                batch.append(entry)
                tokens += entry.tokens
            else:
                left.append(entry)
        self._keep(left)
        return batch

    def _drop_cancelled(self) -> None:
        self._keep(deque(entry for entry in self._waiting if not entry.is_cancelled()))

    def _keep(self, entries: deque[Entry[T]]) -> None:
        self._waiting = entries
        self._queued_tokens = sum(entry.tokens for entry in entries)
