"""Training and held-out windows of a run, from its arguments, and the parts that all their batches have."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rerank.checkpoints.manifest import trained_window
from rerank.errors import ConfigError
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank_training.lists.files import read_lists
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.windows import TrainingWindows, WindowSampling, sample_window
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.flags import ListArguments
from rerank_training.trainer.run import items_needed

logger = logging.getLogger(__name__)

Arguments = TypeVar("Arguments", bound=ListArguments)


def read_training_lists(arguments: ListArguments) -> tuple[Sequence[TrainingList], Sequence[TrainingList]]:
    """The training lists and the held-out lists; there may be no held-out ones.

    Held-out lists of a query that is trained on are left out: a model that learnt them by heart would be the best.

    Raises:
        CollectionError: see `read_lists`.
        ConfigError: all held-out lists are of queries that are trained on.
    """
    grades = grades_by_query(read_qrels(Path(arguments.qrels))) if arguments.qrels else None
    paths = (arguments.lists, arguments.eval_lists)
    lists, given = (read_lists(Path(path), grades) if path else [] for path in paths)
    trained = {_words(item) for item in lists}
    held_out = [item for item in given if _words(item) not in trained]
    if len(held_out) < len(given):
        problem = f"{len(given) - len(held_out)} of the {len(given)} lists of --eval-lists {arguments.eval_lists}"
        problem += f" have queries of --lists {arguments.lists}"
        if not held_out:
            raise ConfigError(f"{problem}, so that nothing is held out; give lists of other queries")
        logger.warning("%s; they are left out", problem)
    return lists, held_out


def _words(item: TrainingList) -> tuple[str, str]:
    return item.query.text, item.query.instruction


def with_filled_windows(arguments: Arguments, lists: Sequence[TrainingList], base: str) -> Arguments:
    """The arguments with windows that the longest training list fills, so that no manifest names a size never seen.

    Args:
        base: folder of the base; one with a manifest has seen its windows.
    """
    longest = max(2, trained_window(Path(base)) or 0, *(len(item.passages) for item in lists))
    if longest >= arguments.window_size:
        return arguments
    logger.warning(
        "windows have %d passages, and so says the manifest, instead of %d: no list of --lists %s has more",
        *(longest, arguments.window_size, arguments.lists),
    )
    return replace(arguments, window_size=longest, min_window_size=min(arguments.min_window_size, longest))


def training_windows(
    arguments: ListArguments, settings: RunArguments, lists: Sequence[TrainingList]
) -> TrainingWindows[TrainingList, TrainingList]:
    """The windows of all steps. Raises: ConfigError when sizes or shares are out of range."""
    sampling = WindowSampling(
        max_size=arguments.window_size,
        min_size=arguments.min_window_size or arguments.window_size,
        shuffled_share=arguments.shuffled_share,
    )
    sample = partial(sample_window, sampling=sampling)
    return TrainingWindows(lists, sample, items_needed(settings, len(lists)), settings.seed)


def held_out_windows(arguments: ListArguments, lists: Sequence[TrainingList]) -> list[TrainingList] | None:
    """The first passages of each held-out list in its order, as serving would rank them; None without such lists."""
    return [item.select(range(min(arguments.window_size, len(item.passages)))) for item in lists] or None


def relevance_and_mask(windows: Sequence[TrainingList]) -> dict[str, Tensor]:
    """`relevance` (B, N) and `mask` (B, N) of a batch, the latter False at the padding of short windows."""
    relevance = [window.relevance for window in windows]
    return {"relevance": pad_rows(relevance), "mask": pad_rows([[1.0] * len(row) for row in relevance]).bool()}


def pad_rows(rows: Sequence[Sequence[float]]) -> Tensor:
    """(B, N) float32 with 0 at the padding of short rows."""
    return pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
