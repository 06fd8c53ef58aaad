"""Chooses the weights of a fusion on judged lists, and measures their gain on held-out lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from rerank_eval.statistics import Comparison, compare
from rich.console import Console

from rerank.commands.progress import with_progress
from rerank.config import FusionModel
from rerank.engine.scores import first_stage_scores
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.fused_scores import Floats, Signals, cheap_scores, list_scores, weight_by_list
from rerank.rankers.fusion import cheap_signals
from rerank.types import FirstStageKind, FirstStageWeight
from rerank.util.words import READ_CHARS, stems
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.trainer.ndcg import ndcg_at_10

#: (lists,) or (weights, lists) nDCG@10.
Values: TypeAlias = npt.NDArray[np.float64]

#: Weights of the first stage and of the sparse score that are tried, in all combinations.
_FIRST_STAGE, _SPARSE = (0.0, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0), (0.2, 0.4, 0.6, 0.8, 1.0)
#: Parts of the lists in cross-validation.
_FOLDS = 10
#: Permutations of the significance test.
_PERMUTATIONS = 2000
#: Share of the permuted gains beyond each end of the 95 % interval.
_TAIL = 0.025
#: Means with a smaller difference count as equal, because sums in another order are rounded differently.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class SignalList:
    """The signals of a list's n passages, and their relevance (n,)."""

    signals: Signals
    relevance: npt.NDArray[np.float32]


def signals_of(
    lists: Sequence[TrainingList], encoder: Encoder, sparse_encoder: SparseEncoder, console: Console
) -> Iterator[SignalList]:
    """Computes the signals of lists, with progress bars. Each text without a vector is encoded once."""
    queries = VectorTable(encoder.encode_queries, texts_of([lists], "queries"), console)
    missing = (passage.text for item in lists for passage in item.passages if passage.vector is None)
    passages = VectorTable(partial(encoder.encode_passages, dtype="auto"), missing, console)
    for item in with_progress(lists, "lists", len(lists), console):
        first_stage = np.array(first_stage_scores(item.scores or [None] * len(item.passages)), dtype=np.float64)
        # With the query's vector at unit length, as `FusionRanker.prepare` computes the sparse scores.
        query = sparse_encoder.encode_query(item.query.text).unit()
        sparse = sparse_encoder.scores(query, sparse_encoder.encoded(item.passages)).astype(np.float64)
        vectors = [passages([p.text])[0] if p.vector is None else p.vector for p in item.passages]
        words = [stems(passage.text[:READ_CHARS]) for passage in item.passages]
        cheap = cheap_signals(item.query, words, first_stage, sparse, encoder)
        signals = Signals(cheap, np.stack(vectors), queries([item.query.text])[0])
        yield SignalList(signals, np.array(item.relevance, dtype=np.float32))


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the first stage and of the sparse score in a fusion; the cosine has weight 1.

    Attributes:
        first_stage: a number, or a kind of first stage, for which each list has a weight of its own.
        sparse: a number.
    """

    first_stage: FirstStageWeight
    sparse: float

    @classmethod
    def tried(cls, default: Weights) -> list[Weights]:
        """The weights that are tried, the default ones first."""
        grid = [cls(*weights) for weights in product(_FIRST_STAGE, _SPARSE)]
        return [default, *(weights for weights in grid if weights != default)]

    def __str__(self) -> str:
        first_stage = self.first_stage if isinstance(self.first_stage, FirstStageKind) else f"{self.first_stage:g}"
        return f"first_stage_weight {first_stage}, sparse_weight {self.sparse:g}"


def ndcg_of_weights(item: SignalList, tried: Sequence[Weights], model: FusionModel) -> list[float]:
    """nDCG@10 within a list for each of the weights, as a service with these weights would rank the texts."""
    settings = [model.model_copy(update={"sparse_weight": weights.sparse}) for weights in tried]
    return [
        _ndcg(served_scores(item, setting, weights.first_stage), item)
        for setting, weights in zip(settings, tried, strict=True)
    ]


def ndcg_of_first_stage(item: SignalList) -> float:
    """nDCG@10 within a list in the order of the first stage."""
    return _ndcg(-np.arange(len(item.relevance), dtype=np.float64), item)


def served_scores(item: SignalList, settings: FusionModel, first_stage_weight: FirstStageWeight) -> Floats:
    """(n,) scores of `FusionRanker` for the passages of a list, which a request would give as texts."""
    cheap = item.signals.cheap
    scores = cheap_scores(settings, weight_by_list(settings, first_stage_weight, cheap), cheap)
    read = np.sort(np.argsort(-scores, kind="stable")[: settings.cosine_depth or len(scores)])
    return list_scores(settings, first_stage_weight, cheap, read, item.signals.select(read))[0]


def _ndcg(scores: Floats, item: SignalList) -> float:
    mask = torch.ones(1, len(scores), dtype=torch.bool)
    return float(ndcg_at_10(torch.from_numpy(scores)[None], torch.from_numpy(item.relevance)[None], mask))


def choose(values: Values) -> int:
    """Index of the weights with the best mean, or 0, the default, if its mean is at most a standard error lower.

    The best of many weights on few lists is often worse on others. This is the one-standard-error rule (Breiman et al.,
    Classification and Regression Trees, 1984, section 3.4.3), with the error of the paired difference.

    Args:
        values: (weights, lists) nDCG@10 of at least two lists.
    """
    return int(_choose(values - values[0], _no_flips(values))[0])


def cross_validate(values: Values, seed: int) -> Values:
    """(lists,) nDCG@10 of each list with the weights that are chosen on the other nine tenths of the lists.

    Args:
        values: (weights, lists) nDCG@10 of at least four lists.
    """
    return values[0] + _held_out(values - values[0], _no_flips(values), seed)[0]


def _no_flips(values: Values) -> Values:
    """(1, lists) signs that permute nothing: all are 1."""
    return np.ones((1, values.shape[1]))


def _choose(differences: Values, signs: Values) -> npt.NDArray[np.intp]:
    """(trials,) indices as of `choose`, for differences (weights, lists) times the signs (trials, lists) of a trial."""
    lists = signs.shape[1]
    means = signs @ differences.T / lists
    best = means.argmax(axis=1)
    gains = means[np.arange(len(best)), best]
    squares = np.square(differences).sum(axis=1)[best]  # the same for all signs
    errors = np.sqrt(np.maximum(squares - lists * gains**2, 0.0) / (lists - 1) / lists)
    return np.where(gains > errors, best, 0)


def _held_out(differences: Values, signs: Values, seed: int) -> Values:
    """(trials, lists) differences of each list with the weights that are chosen on the other parts of the lists."""
    lists = np.random.default_rng(seed).permutation(differences.shape[1])
    held_out = np.empty(signs.shape)
    for part in np.array_split(lists, min(_FOLDS, len(lists) // 2)):
        chosen = _choose(np.delete(differences, part, axis=1), np.delete(signs, part, axis=1))
        held_out[:, part] = differences[:, part][chosen] * signs[:, part]
    return held_out


def gain(values: Values, seed: int, permutations: int = _PERMUTATIONS) -> Comparison:
    """Compares `cross_validate` with the default weights; interval and p-value come from a sign-flip permutation test.

    A permutation flips the signs of the differences of all weights from the default on random lists, and repeats the
    cross-validation, so that it finds the gain of weights without effect. The two-sided p-value is the share of
    permutations whose gain is at least as far from 0. The 95 % interval has the gains that the test does not reject, so
    it contains 0 exactly if p is at least 0.05. Student's t-test would assume that the differences of lists are
    independent; they are not, because several folds choose the same weights.

    Args:
        values: (weights, lists) nDCG@10 of at least four lists; the first weights are the default.
        seed: seed of the folds and of the permutations.
        permutations: number of permutations.
    """
    differences, rng = values - values[0], np.random.default_rng(seed)
    compared = compare(cross_validate(values, seed), values[0])
    found = compared.difference
    signs = rng.choice([-1.0, 1.0], (permutations, values.shape[1]))
    chance = np.sort(_held_out(differences, signs, seed).mean(axis=1))
    tail = min((chance >= found - _ROUNDING).sum(), (chance <= found + _ROUNDING).sum())
    p = min(1.0, 2 * (1 + float(tail)) / (1 + permutations))
    beyond = int(_TAIL * (1 + permutations))
    interval = (found - float(chance[-beyond]), found - float(chance[beyond - 1]))
    return replace(compared, interval=interval, p=p)
