"""Windows of training lists: a subset of a list's passages, optionally shuffled, as one training example."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch.utils.data import Dataset

from rerank.errors import ConfigError
from rerank_training.lists.training_list import TrainingList

List = TypeVar("List")
Window = TypeVar("Window")


@dataclass(frozen=True, slots=True)
class WindowSampling:
    """Parameters of the sampling of windows from lists.

    Attributes:
        max_size: largest number of passages in a window.
        min_size: smallest number; all sizes in between are equally likely. A shorter list gives all its passages.
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


class TrainingWindows(Dataset[Window], Generic[List, Window]):
    """Windows of passes over the lists: one window per list and pass, with the lists in a new order in each pass.

    Window i depends only on the seed and on i, so that a resumed run continues with the windows it has not seen yet.

    Args:
        sample: makes a window of a list with a seed, as `sample_window` does.
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


def sample_window(item: TrainingList, seed: str, sampling: WindowSampling) -> TrainingList:
    """Samples a window. It always holds one of the most relevant passages, so that there is something to learn."""
    rng = random.Random(seed)
    n = len(item.passages)
    size = min(n, rng.randint(sampling.min_size, sampling.max_size))
    best = rng.choice([position for position in range(n) if item.relevance[position] == max(item.relevance)])
    positions = [best, *rng.sample([position for position in range(n) if position != best], size - 1)]
    if rng.random() < sampling.shuffled_share:
        rng.shuffle(positions)
    else:
        positions.sort()
    return item.select(positions)
