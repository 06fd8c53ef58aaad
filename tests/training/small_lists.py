"""Small training lists, and their windows as serving makes them."""

import json
import random
from pathlib import Path

from rerank_training.lists.training_list import TrainingList, write_lists

from rerank.rankers.base import Ranker
from rerank.types import Passage, Query, Window
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


def a_list(query: str, **relevance: float) -> TrainingList:
    """A list with a passage for each keyword, which is its doc_id."""
    return TrainingList(Query(query), tuple(Passage(d, f"text {d}") for d in relevance), tuple(relevance.values()))


def served_window(ranker: Ranker, item: TrainingList) -> Window:
    """The window that a ranker makes of a list."""
    ready = ranker.prepare(item.query, item.passages)
    return Window(ready.query, ready.passages)


def logged_losses(save: Path) -> list[float]:
    """The losses that a save of a run has logged, step by step."""
    state = json.loads((save / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]
