"""The workload of all measurements: one checkpoint, the rankers that load it, lists, windows, and timing in turns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from rerank.models.encoder import Encoder
from rerank.rankers.first import FirstRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.readers.candidates import CandidateList, read_requests
from rerank.types import Passage, Query, Window
from scripts.bench.models import TINY, LlamaSize, llama, save_with_projector
from scripts.random_requests import words

#: Passages per window, and of a list.
PASSAGES, DEPTH = 20, 100
#: Lists of random texts; the most lists of a file, and to be quick; and windows that rankers read.
_RANDOM_LISTS, _MOST_LISTS, _QUICK_LISTS, _WINDOWS = 8, 43, 4, 8
#: Characters of a random passage; 20 of them have about 2,000 tokens, as in published windows of DL 2019.
_CHARACTERS, _QUICK_CHARACTERS = (225, 675), (10, 30)
#: Values by the name of a figure or of a variant; one value per repeat.
Values: TypeAlias = dict[str, list[float]]


@dataclass(frozen=True)
class Workload:
    """Models and texts, created when they are first needed.

    Attributes:
        folder: for checkpoints.
        requests: RankLLM request file with the texts; None: random texts.
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
        """A random checkpoint for FIRST and PE-Rank, in the published layout of PE-Rank."""
        folder, tokenizer = self.folder / "model", self.encoder.copy_tokenizer()
        model = llama(TINY if self.quick else LlamaSize())
        save_with_projector(model, folder, self.encoder.id.name, self.encoder.id.dimension)
        tokenizer.model_max_length = 8192
        tokenizer.save_pretrained(folder)
        return folder

    @cached_property
    def first(self) -> FirstRanker:
        return FirstRanker(self.checkpoint, "first", device="cpu")

    def pe_rank(self, dynamic: bool = False) -> PERankRanker:
        return PERankRanker(self.checkpoint, self.encoder, "cpu", "dynamic" if dynamic else "one_step")

    @cached_property
    def lists(self) -> Sequence[CandidateList]:
        """Queries with up to 100 candidates that come as texts, all different."""
        if self.requests is not None:
            found = islice(read_requests(self.requests), _QUICK_LISTS if self.quick else _MOST_LISTS)
            return [CandidateList(item.query, item.candidates[:DEPTH]) for item in found]
        draw = random.Random(0)
        shortest, longest = _QUICK_CHARACTERS if self.quick else _CHARACTERS

        def passage(doc_id: str) -> Passage:
            return Passage(doc_id, f"{doc_id} {words(draw, draw.randint(shortest, longest))}")

        return [
            CandidateList(Query(words(draw, 30)), tuple(passage(f"{number}-{place}") for place in range(DEPTH)))
            for number in range(_RANDOM_LISTS)
        ]

    @cached_property
    def windows(self) -> list[Window]:
        """The first passages of eight lists, prepared for FIRST; each has a random unit vector."""
        return [with_vectors(self.window(item, PASSAGES), self.encoder.id.dimension) for item in self.lists[:_WINDOWS]]

    def window(self, item: CandidateList, passages: int) -> Window:
        """The first passages of a list, prepared for FIRST."""
        prepared = self.first.prepare(item.query, item.candidates[:passages])
        return Window(prepared.query, prepared.passages)


def with_vectors(window: Window, dimension: int) -> Window:
    """The window with a random unit vector for each passage."""
    vectors = np.random.default_rng(0).normal(size=(len(window.passages), dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = zip(window.passages, vectors, strict=True)
    return replace(window, passages=tuple(replace(passage, vector=vector) for passage, vector in pairs))


def time_in_turns(variants: Mapping[str, Callable[[], object]], repeats: int) -> Values:
    """CPU seconds of every variant in each of the repeats, after one round as a warm-up."""
    seconds: Values = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name, run in variants.items():
            start_s = time.process_time()
            run()
            if repeat:
                seconds[name].append(time.process_time() - start_s)
    return seconds


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratio of two variants' seconds in each repeat."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
