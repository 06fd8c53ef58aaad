"""Lists → the windows that a model is trained on: some of a list's passages, perhaps in another order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import Dataset

from rerank.errors import ConfigError
from rerank_training.data import TrainingList


@dataclass(frozen=True, slots=True)
class WindowSampling:
    """How windows are drawn from lists.

    Attributes:
        largest: the most passages of a window.
        smallest: the fewest; sizes between the two are equally likely. A list that is shorter gives all it has.
        shuffled_share: the share of windows, in 0-1, whose passages stand in random order; others keep the list's.
    """

    largest: int
    smallest: int
    shuffled_share: float

    def __post_init__(self) -> None:
        if not 2 <= self.smallest <= self.largest:
            raise ConfigError(
                f"windows of {self.smallest} to {self.largest} passages cannot be drawn; use 2 <= smallest <= largest"
            )
        if not 0 <= self.shuffled_share <= 1:
            raise ConfigError(f"shuffled_share {self.shuffled_share} is no share; use 0 to 1")


class TrainingWindows(Dataset[TrainingList]):
    """`epochs` passes over the lists, one window a list and pass, each pass in an order of its own.

    Window i depends on the seed and on i alone, so a run that was killed goes on with the windows that it had not seen.
    """

    def __init__(self, lists: Sequence[TrainingList], sampling: WindowSampling, epochs: int, seed: int) -> None:
        self._lists = lists
        self._sampling = sampling
        self._epochs = epochs
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return self._epochs * len(self._lists)

    def __getitem__(self, index: int) -> TrainingList:
        epoch, place = divmod(index, len(self._lists))
        return sample_window(self._lists[self._order(epoch)[place]], self._sampling, f"{self._seed}/{index}")

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            self._orders = {epoch: random.Random(f"{self._seed}/order/{epoch}").sample(range(n := len(self._lists)), n)}
        return self._orders[epoch]


class HeldOutWindows(Dataset[TrainingList]):
    """The first `largest` passages of each list, in its order: what a first-stage run would hand over."""

    def __init__(self, lists: Sequence[TrainingList], largest: int) -> None:
        self._windows = [chosen(item, range(min(largest, len(item.passages)))) for item in lists]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> TrainingList:
        return self._windows[index]


def sample_window(item: TrainingList, sampling: WindowSampling, seed: str) -> TrainingList:
    """A window of the list. One of its best passages is always in it, so that there is something to learn."""
    rng = random.Random(seed)
    n = len(item.passages)
    size = min(n, rng.randint(sampling.smallest, sampling.largest))
    best = rng.choice([place for place in range(n) if item.relevance[place] == max(item.relevance)])
    places = [best, *rng.sample([place for place in range(n) if place != best], size - 1)]
    if rng.random() < sampling.shuffled_share:
        rng.shuffle(places)
    else:
        places.sort()
    return chosen(item, places)


def chosen(item: TrainingList, places: Sequence[int]) -> TrainingList:
    """The list with these passages only, in this order."""
    return TrainingList(
        item.query,
        tuple(item.passages[place] for place in places),
        tuple(item.relevance[place] for place in places),
    )
