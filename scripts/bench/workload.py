"""The workload of all measurements: one checkpoint, the rankers that load it, eight windows, and timing in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TypeAlias

from rerank.models.encoder import Encoder
from rerank.rankers.first import FirstRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.readers.candidates import read_requests
from rerank.types import Passage, Window
from scripts.bench.models import TINY, LlamaSize, make_windows, write_checkpoint

#: Passages per window.
PASSAGES = 20
#: Candidates of a list, and the most lists that are timed.
_DEPTH, _LISTS = 100, 43
#: Values by the name of a figure or of a variant; one value per repeat.
Values: TypeAlias = dict[str, list[float]]


@dataclass(frozen=True)
class Workload:
    """Models and windows, created when they are first needed.

    Attributes:
        folder: for checkpoints.
        requests: RankLLM request file with the texts of the windows; None: random texts.
        quick: tiny models and short passages, which show only that the benchmark runs.
        repeats: how often each variant is timed.
    """

    folder: Path
    requests: Path | None
    quick: bool
    repeats: int

    @property
    def few_repeats(self) -> int:
        """Repeats of slow variants."""
        return max(2, self.repeats // 2)

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(device="cpu")

    @cached_property
    def checkpoint(self) -> Path:
        return write_checkpoint(self.folder / "model", self.encoder, TINY if self.quick else LlamaSize())

    @cached_property
    def first(self) -> FirstRanker:
        return FirstRanker(self.checkpoint, "first", device="cpu")

    def pe_rank(self, dynamic: bool = False) -> PERankRanker:
        return PERankRanker(self.checkpoint, self.encoder, "cpu", "dynamic" if dynamic else "one_step")

    @cached_property
    def windows(self) -> list[Window]:
        """Eight windows, prepared for FIRST."""
        if self.quick:
            windows = make_windows(self.encoder, 8, PASSAGES, words=4)
        else:
            windows = make_windows(self.encoder, 8, PASSAGES, requests=self.requests)
        return [self.prepare(window) for window in windows]

    def prepare(self, window: Window) -> Window:
        prepared = self.first.prepare(window.query, window.passages)
        return replace(window, query=prepared.query, passages=prepared.passages)

    def lists(self) -> Iterator[tuple[str, Sequence[Passage]]]:
        """Queries with candidates that come as texts: of the requests, or random ones."""
        if self.requests is not None:
            for request in islice(read_requests(self.requests), 2 if self.quick else _LISTS):
                yield request.query.text, request.candidates[:_DEPTH]
            return
        for number in range(3 if self.quick else len(self.windows)):
            passages = self.windows[number % len(self.windows)].passages
            copies = 1 if self.quick else _DEPTH // PASSAGES
            # A number in front makes each text new.
            texts = [f"{number} {copy} {passage.text}" for copy in range(copies) for passage in passages]
            yield "a query", [Passage(f"d{index}", text) for index, text in enumerate(texts)]


def time_in_turns(
    variants: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.process_time
) -> Values:
    """Seconds of every variant in each of the repeats, after one round as a warm-up.

    Args:
        variants: functions to time, by name.
        clock: CPU time of this process, or another clock in seconds.
    """
    seconds: Values = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name, run in variants.items():
            start = clock()
            run()
            if repeat:
                seconds[name].append(clock() - start)
    return seconds


def figure_of(values: Sequence[float]) -> dict[str, float]:
    """Median and range of the repeats."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratio of two variants' seconds in each repeat."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
