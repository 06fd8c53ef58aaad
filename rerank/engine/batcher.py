"""Work that waits for one thread → its next batch. Pure: no torch, no thread, no clock; time is passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rerank.engine.throughput import Lane, Task, Throughput

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Entry(Generic[T]):
    """A piece of a request's work that waits. `is_cancelled` is asked when a batch forms: nobody runs what nobody
    waits for."""

    payload: T
    task: Task
    lane: Lane
    #: What it takes of a batch's budget, 1 or more.
    tokens: int
    is_cancelled: Callable[[], bool]


class Batcher(Generic[T]):
    """The entry of the most urgent request first; beside it those of the same lane that fit, most urgent first.

    Args:
        throughput: says what is urgent.
        max_batch_tokens: the budget of a batch, for lanes without one of their own. An entry that alone exceeds it
            runs alone: with 1000, ten windows of 100 tokens run together, one of 1500 by itself.
    """

    def __init__(self, throughput: Throughput, max_batch_tokens: int) -> None:
        self._throughput = throughput
        self._max_batch_tokens = max_batch_tokens
        self._budgets: dict[Lane, int] = {}
        self._waiting: list[Entry[T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def budget(self, lane: Lane) -> int:
        return self._budgets.get(lane, self._max_batch_tokens)

    def set_budget(self, lane: Lane, tokens: int) -> None:
        self._budgets[lane] = max(1, tokens)

    def add(self, entry: Entry[T]) -> None:
        self._waiting.append(entry)

    def drop_late(self, now_s: float) -> list[Entry[T]]:
        """Takes out what can no longer be ready in time, and what nobody waits for; gives back the former."""
        waiting = [entry for entry in self._waiting if not entry.is_cancelled()]
        late = [self._throughput.is_late(entry.task, now_s) for entry in waiting]
        self._waiting = [entry for entry, is_late in zip(waiting, late, strict=True) if not is_late]
        return [entry for entry, is_late in zip(waiting, late, strict=True) if is_late]

    def next_batch(self, now_s: float) -> list[Entry[T]]:
        """Entries of one lane under its budget; empty when nothing waits. Of equally urgent ones the older first."""
        waiting = [entry for entry in self._waiting if not entry.is_cancelled()]
        waiting.sort(key=lambda entry: self._throughput.priority(entry.task, now_s))
        batch: list[Entry[T]] = []
        left: list[Entry[T]] = []
        tokens = 0
        for entry in waiting:
            if not batch or (entry.lane == batch[0].lane and tokens + entry.tokens <= self.budget(entry.lane)):
                batch.append(entry)
                tokens += entry.tokens
            else:
                left.append(entry)
        self._waiting = left
        return batch
