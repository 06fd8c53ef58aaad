"""Small training lists, and their windows as serving makes them."""

import json
import random
from pathlib import Path

from rerank_training.lists.training_list import TrainingList, write_lists

from rerank.reranking.load_models import E2RANK_END_TOKEN
from rerank.types import Passage, Query
from tests.conftest import PASSAGES
from tests.small_encoder import write_qwen_model

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


def logged_losses(save: Path) -> list[float]:
    """The losses that a save of a run has logged, step by step."""
    state = json.loads((save / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def e2rank_base(folder: Path, more: str = "") -> str:
    """The --base of `train-e2rank`: a small random model, and how it encodes."""
    return f"{{name: {write_qwen_model(folder)}, pooling: lasttoken, end_token: '{E2RANK_END_TOKEN}'{more}}}"
