"""Training lists that are easy to learn, whose relevant passage repeats the query, and training runs on them."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

from rerank_training.first.arguments import FirstArguments
from rerank_training.first.training import train_first
from rerank_training.lists.training_list import TrainingList, write_lists

from rerank.types import Passage, Query
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import uncased
from tests.training.parsing import parse_arguments

LETTERS, HELD_OUT_LETTERS = "pqrstuvwxyz", "abcdefghijk"


def word_lists(n: int, passages: int = 4, seed: int = 0, letters: str = LETTERS) -> list[TrainingList]:
    """Lists of distinct letters, with the query's at a random position."""
    rng = random.Random(seed)
    lists = []
    for number in range(n):
        drawn = rng.sample(letters, passages)
        query = rng.choice(drawn)
        shown = tuple(Passage(f"{number}-{letter}", letter) for letter in drawn)
        relevance = tuple(float(letter == query) for letter in drawn)
        lists.append(TrainingList(Query(query, query_id=str(number)), shown, relevance))
    return lists


def write_inputs(folder: Path, n_lists: int) -> Path:
    """Writes a small causal LM to `base`, lists to `lists.jsonl` and `held-out.jsonl`, and returns the folder."""
    write_causal_lm(folder / "base", "llama", uncased())
    write_lists(folder / "lists.jsonl", word_lists(n_lists))
    write_lists(folder / "held-out.jsonl", word_lists(n_lists, letters=HELD_OUT_LETTERS))
    return folder


def first_run(inputs: Path, output_dir: Path, *flags: str) -> Path:
    """Trains like the command, on the CPU and without reports, and returns the folder of the result."""
    return train_first(*parse_arguments(FirstArguments, *first_flags(inputs, output_dir, *flags)))


def first_flags(inputs: Path, output_dir: Path, *flags: str) -> list[str]:
    paths = {"--lists": inputs / "lists.jsonl", "--base": inputs / "base", "--output-dir": output_dir}
    given = [text for flag, path in paths.items() for text in (flag, str(path))]
    fixed = shlex.split("--template first_small --window-size 4 --warmup-steps 0 --use-cpu true")
    return [*given, *fixed, *flags]
