"""Small training lists of the conftest's passages, whose order is known."""

from __future__ import annotations

import random
from pathlib import Path

from rerank_training.lists.training_list import TrainingList, write_lists

from rerank.types import Passage, Query
from tests.conftest import PASSAGES

QUERIES = ("how long does a flea live", "what makes bread rise", "search library", "where is ice", "string instruments")
HELD_OUT = ("do fleas bite", "when is high water", "dry places", "who bakes at night")


def training_lists(
    count: int = 10, sizes: tuple[int, ...] = (3, 5, 4), queries: tuple[str, ...] = QUERIES
) -> list[TrainingList]:
    """Lists of several sizes; the teacher is the alphabetical order of the doc_ids, which no encoder knows."""
    draw = random.Random(0)
    lists = []
    for number in range(count):
        names = draw.sample(sorted(PASSAGES), sizes[number % len(sizes)])
        passages = tuple(Passage(name, PASSAGES[name][1]) for name in names)
        query = Query(queries[number % len(queries)], str(number))
        relevance = tuple(float(len(names) - sorted(names).index(name)) for name in names)
        lists.append(TrainingList(query, passages, relevance))
    return lists


def write_training_lists(path: Path, count: int = 10, queries: tuple[str, ...] = QUERIES) -> Path:
    write_lists(path, training_lists(count, queries=queries))
    return path
