"""Training examples of a fusion: the signals that serving computes of a list, and windows of its best passages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from rerank.commands.progress import with_progress
from rerank.config import FusionModel
from rerank.engine.scores import reciprocal_ranks
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.fused_scores import CheapSignals, Floats, Signals, cheap_scores, fused_scores, signals_beside_others
from rerank.types import Matrix
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.trainer.data import pad_rows
from rerank_training.trainer.losses import RankLoss
from rerank_training.trainer.processes import over_all_processes

#: Fused score of a passage that is not read: below all others.
_UNREAD = -1e4


@dataclass(frozen=True, slots=True)
class SignalList:
    """The signals of a list's n passages, and their relevance (n,)."""

    signals: Signals
    relevance: npt.NDArray[np.float32]

    def select(self, places: npt.NDArray[np.intp]) -> SignalList:
        """The passages at these places, in this order."""
        signals = self.signals
        selected = Signals(signals.cheap.select(places), signals.vectors[places], signals.query)
        return SignalList(selected, self.relevance[places])

    def without_first_stage(self) -> SignalList:
        """The same without the scores of the first stage."""
        cheap = replace(self.signals.cheap, first_stage=np.zeros(len(self.relevance)))
        return replace(self, signals=replace(self.signals, cheap=cheap))


class SignalLists(Sequence[SignalList]):
    """The signals of training lists, whose sparse scores are computed once, with a progress bar.

    Args:
        queries, passages: the vectors of all texts in the lists; None: the passages have their vectors.
    """

    def __init__(
        self,
        lists: Sequence[TrainingList],
        queries: VectorTable,
        passages: VectorTable | None,
        sparse_encoder: SparseEncoder,
        console: Console,
    ) -> None:
        self._lists = lists
        self._queries, self._passages = queries, passages
        progress = with_progress(lists, "lists", len(lists), console)
        self._sparse = [_sparse_scores(item, sparse_encoder) for item in progress]

    def __len__(self) -> int:
        return len(self._lists)

    @overload
    def __getitem__(self, index: int) -> SignalList: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SignalList]: ...

    def __getitem__(self, index: int | slice) -> SignalList | Sequence[SignalList]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        item = self._lists[index]
        first_stage = item.scores or reciprocal_ranks(len(item.passages))
        (query,) = self._queries([item.query.text])
        signals = Signals(CheapSignals(np.array(first_stage), self._sparse[index]), self._vectors(item), query)
        return SignalList(signals, np.array(item.relevance, dtype=np.float32))

    def _vectors(self, item: TrainingList) -> Matrix:
        """(n, D) of the list's passages."""
        if self._passages is not None:
            return self._passages([passage.text for passage in item.passages])
        return np.stack([passage.vector for passage in item.passages if passage.vector is not None])


def signals_of(
    parts: Sequence[Sequence[TrainingList]], encoder: Encoder, sparse_encoder: SparseEncoder, console: Console
) -> list[SignalLists]:
    """The signals of several sequences of lists, each text encoded once. Passages may have their vectors already."""
    queries = VectorTable(encoder.encode_queries, texts_of(parts, "queries"), console)
    passages = None
    if parts[0][0].passages[0].vector is None:
        encode = partial(encoder.encode_passages, dtype="auto")
        passages = VectorTable(encode, texts_of(parts, "passages"), console)
    return [SignalLists(part, queries, passages, sparse_encoder, console) for part in parts]


def _sparse_scores(item: TrainingList, encoder: SparseEncoder) -> Floats:
    """(n,) with the query's vector at unit length, as `FusionRanker.prepare` computes them."""
    scored = encoder.scored(encoder.encode_query(item.query.text).unit(), item.passages)
    return np.array([passage.sparse_score for passage in scored], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Example:
    """A window of n passages as the network reads it.

    Attributes:
        beside_others: (n, 5) signals, see `signals_beside_others`.
        vectors: (n, D) unit vectors.
        query: (D,) unit vector.
        fused: (n,) scores, to which the corrections are added.
        relevance: (n,) higher is better.
    """

    beside_others: npt.NDArray[np.float32]
    vectors: npt.NDArray[np.float32]
    query: npt.NDArray[np.float32]
    fused: npt.NDArray[np.float32]
    relevance: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExampleSampling:
    """Makes windows of lists.

    Attributes:
        settings: of the fusion; `cosine_depth` is the size of the smallest window.
        first_stage_weight: of the first stage's z-scores.
        unscored_share: share of windows without the scores of the first stage, as some clients send them, in 0–1.
    """

    settings: FusionModel
    first_stage_weight: float
    unscored_share: float = 0.2

    def __call__(self, item: SignalList, seed: str) -> Example:
        """Samples a window: the best passages by the signals that need no vector, as many as `cosine_depth` or more."""
        rng = random.Random(seed)
        if rng.random() < self.unscored_share:
            item = item.without_first_stage()
        n = len(item.relevance)
        smallest = min(self.settings.cosine_depth or n, n)
        best, _ = self._by_cheap_score(item, rng.randint(smallest, n))
        return self._example(item.select(best))

    def as_served(self, item: SignalList) -> Example:
        """All passages as the service ranks texts: those that are not read follow in the order of the cheap score."""
        best, others = self._by_cheap_score(item, self.settings.cosine_depth or len(item.relevance))
        read, unread = self._example(item.select(best)), item.select(others)
        return Example(
            np.concatenate([read.beside_others, np.zeros((len(others), read.beside_others.shape[1]), np.float32)]),
            np.concatenate([read.vectors, np.zeros_like(unread.signals.vectors)]),
            read.query,
            np.concatenate([read.fused, _UNREAD - np.arange(len(others), dtype=np.float32)]),
            np.concatenate([read.relevance, unread.relevance]),
        )

    def _by_cheap_score(self, item: SignalList, n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """The places of the best n passages in the order of the list, and the others, best first."""
        scores = cheap_scores(self.settings, self.first_stage_weight, item.signals.cheap)
        places = np.argsort(-scores, kind="stable")
        return np.sort(places[:n]), places[n:]

    def _example(self, item: SignalList) -> Example:
        fused = fused_scores(self.settings, self.first_stage_weight, item.signals)
        beside_others = signals_beside_others(item.signals, fused)
        signals = item.signals
        return Example(beside_others, signals.vectors, signals.query, fused.astype(np.float32), item.relevance)


class ServedExamples(Dataset[Example]):
    """One example per held-out list, see `ExampleSampling.as_served`."""

    def __init__(self, lists: SignalLists, sampling: ExampleSampling) -> None:
        self._lists = lists
        self._sampling = sampling

    def __len__(self) -> int:
        return len(self._lists)

    def __getitem__(self, index: int) -> Example:
        return self._sampling.as_served(self._lists[index])


def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
    """A batch of B examples of up to N passages, with 0 and mask False at the padding of short ones."""

    def padded(name: str) -> Tensor:
        return pad_sequence([torch.from_numpy(getattr(example, name)) for example in examples], batch_first=True)

    mask = pad_rows([[1.0] * len(example.relevance) for example in examples]).bool()
    names = ("beside_others", "vectors", "fused", "relevance")
    return {name: padded(name) for name in names} | {
        "query": torch.from_numpy(np.stack([example.query for example in examples])),
        "mask": mask,
    }


@dataclass(frozen=True, slots=True)
class FusionObjective:
    """Loss of a batch of `collate`, and the corrected scores of its passages."""

    rank_loss: RankLoss

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a batch; its mean over the processes is the loss of the windows of all of them."""
        return over_all_processes(self.rank_loss)(self.scores(model, batch), batch["relevance"], batch["mask"])

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, N) scores as in serving; undefined at the padding of short windows."""
        corrections: Tensor = model(batch["beside_others"], batch["vectors"], batch["query"])
        return batch["fused"] + corrections.float()
