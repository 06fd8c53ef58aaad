"""Training and held-out windows of a run: subsets of a list's passages, optionally shuffled, as training examples."""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from rerank.checkpoints.manifest import CheckpointManifest
from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel, read_qrels
from rerank.util.combining import nfc
from rerank_training.lists.training_list import TrainingList, graded, read_lists
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.flags import ListArguments

logger = logging.getLogger(__name__)

Arguments = TypeVar("Arguments", bound=ListArguments)
List = TypeVar("List")
Window = TypeVar("Window")


def read_training_lists(arguments: ListArguments) -> tuple[Sequence[TrainingList], Sequence[TrainingList]]:
    """The training lists and the held-out lists, which are empty without --eval-lists.

    Held-out lists of a training query are left out, because the model that learnt them by heart would be selected.

    Raises:
        CollectionError: see `read_lists` and `graded`.
        ConfigError: all held-out lists have training queries.
    """
    qrels = read_judgements(arguments)
    paths = (arguments.lists, arguments.eval_lists)
    lists, given = (graded(read_lists(Path(path), qrels), path) if path else [] for path in paths)
    trained = {(nfc(item.query.text), item.query.instruction) for item in lists}
    held_out = [item for item in given if (nfc(item.query.text), item.query.instruction) not in trained]
    if len(held_out) < len(given):
        problem = f"{len(given) - len(held_out)} of the {len(given)} lists of --eval-lists {arguments.eval_lists}"
        problem += f" have queries of --lists {arguments.lists}"
        if not held_out:
            raise ConfigError(f"{problem}, so that nothing is held out; give lists of other queries")
        logger.warning("%s; they are left out", problem)
    return lists, held_out


def read_judgements(arguments: ListArguments) -> list[Qrel] | None:
    """The judgements of --qrels; None without the flag."""
    return read_qrels(Path(arguments.qrels)) if arguments.qrels else None


def with_filled_windows(
    arguments: Arguments, lists: Sequence[TrainingList], base: CheckpointManifest | None
) -> Arguments:
    """The arguments with windows no longer than the longest list, because the manifest states a size that was trained.

    Args:
        base: manifest of the base, whose window size was trained, too; None if it has none.
    """
    longest = max(2, base.window_size if base else 0, *(len(item.passages) for item in lists))
    if longest >= arguments.window_size:
        return arguments
    logger.warning(
        "windows, and the size in the manifest, have %d passages instead of %d: no list of --lists %s has more",
        *(longest, arguments.window_size, arguments.lists),
    )
    return replace(arguments, window_size=longest, min_window_size=min(arguments.min_window_size, longest))


def training_windows(
    arguments: ListArguments, settings: RunArguments, lists: Sequence[TrainingList]
) -> TrainingWindows[TrainingList, TrainingList]:
    """The windows of all steps. Raises: ConfigError if a size or the shuffled share is out of range."""
    sampling = WindowSampling(
        max_size=arguments.window_size,
        min_size=arguments.min_window_size or arguments.window_size,
        shuffled_share=arguments.shuffled_share,
    )
    return TrainingWindows(lists, sampling.sample, settings.items_needed(len(lists)), settings.seed)


def held_out_windows(arguments: ListArguments, lists: Sequence[TrainingList]) -> list[TrainingList] | None:
    """One window of each held-out list: its first passages, in its order. None without held-out lists."""
    return [item.select(range(min(arguments.window_size, len(item.passages)))) for item in lists] or None


def relevance_and_mask(windows: Sequence[TrainingList]) -> dict[str, Tensor]:
    """`relevance` (B, N) float32 and `mask` (B, N) of a batch, 0 and False at the padding of short windows."""
    relevance = [torch.tensor(window.relevance, dtype=torch.float32) for window in windows]
    mask = [torch.ones(len(row), dtype=torch.bool) for row in relevance]
    return {"relevance": pad_sequence(relevance, batch_first=True), "mask": pad_sequence(mask, batch_first=True)}


@dataclass(frozen=True, slots=True)
class WindowSampling:
    """Parameters of the sampling of windows from lists.

    Attributes:
        max_size: largest number of passages in a window.
        min_size: smallest number; all sizes from it to `max_size` are equally likely. A shorter list is used whole.
        shuffled_share: share of windows in random order, in 0–1; the others keep the order of the list.

    Raises:
        ConfigError: a size or the share is out of range.
    """

    max_size: int
    min_size: int
    shuffled_share: float

    def __post_init__(self) -> None:
        if not 2 <= self.min_size <= self.max_size:
            raise ConfigError(
                f"windows of {self.min_size} to {self.max_size} passages are not possible; use 2 <= smallest <= largest"
            )
        if not 0 <= self.shuffled_share <= 1:
            raise ConfigError(f"shuffled_share {self.shuffled_share} is not a share; use a number from 0 to 1")

    def sample(self, item: TrainingList, seed: str) -> TrainingList:
        """Samples a window that has one of the most relevant passages, so that there is something to learn."""
        rng = random.Random(seed)
        n = len(item.passages)
        size = min(n, rng.randint(self.min_size, self.max_size))
        best = rng.choice([position for position in range(n) if item.relevance[position] == max(item.relevance)])
        positions = [best, *rng.sample([position for position in range(n) if position != best], size - 1)]
        if rng.random() < self.shuffled_share:
            rng.shuffle(positions)
        else:
            positions.sort()
        return item.select(positions)


class TrainingWindows(Dataset[Window], Generic[List, Window]):
    """The windows of a run: one for each list in each pass, with the lists in a new order in each pass.

    Window i depends only on the seed and on i, so that a resumed run continues with the windows it has not seen yet.

    Args:
        sample: (list, seed) → window, such as `WindowSampling.sample`.
        n_windows: number of windows in all passes.
    """

    def __init__(self, lists: Sequence[List], sample: Callable[[List, str], Window], n_windows: int, seed: int) -> None:
        self._lists = lists
        self._sample = sample
        self._n_windows = n_windows
        self._seed = seed
        self._orders: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return self._n_windows

    def __getitem__(self, index: int) -> Window:
        epoch, position = divmod(index, len(self._lists))
        return self._sample(self._lists[self._order(epoch)[position]], f"{self._seed}/{index}")

    def _order(self, epoch: int) -> array[int]:
        if epoch not in self._orders:
            n = len(self._lists)
            self._orders = {epoch: array("q", random.Random(f"{self._seed}/order/{epoch}").sample(range(n), n))}
        return self._orders[epoch]
