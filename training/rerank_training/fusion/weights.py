"""Weights of a fusion that judged lists choose, and what they gain on lists that the choice did not see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from rerank.config import FusionModel
from rerank_training.fusion.examples import ExampleSampling, SignalList
from rerank_training.trainer.ndcg import ndcg_at_10

#: (lists,) or (weights, lists) nDCG@10.
Values: TypeAlias = npt.NDArray[np.float64]

_FIRST_STAGE, _SPARSE = (0.0, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0), (0.2, 0.4, 0.6, 0.8, 1.0)
_FOLDS, _PERMUTATIONS = 10, 2000


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the first stage and of the sparse score in a fusion, beside 1 for the cosine."""

    first_stage: float
    sparse: float

    @classmethod
    def tried(cls, default: Weights) -> list[Weights]:
        """The weights that are tried, the default ones first."""
        grid = [cls(*weights) for weights in product(_FIRST_STAGE, _SPARSE)]
        return [default, *(weights for weights in grid if weights != default)]

    def __str__(self) -> str:
        return f"first_stage_weight {self.first_stage:g}, sparse_weight {self.sparse:g}"


def ndcg_of_weights(lists: Iterable[SignalList], tried: Sequence[Weights], model: FusionModel) -> Values:
    """(weights, lists) nDCG@10 within each list, as the service would rank it with these weights."""
    samplings = [
        ExampleSampling(model.model_copy(update={"sparse_weight": weights.sparse}), weights.first_stage, 0.0)
        for weights in tried
    ]
    columns = [[_ndcg(*_scored(sampling, item)) for sampling in samplings] for item in lists]
    return np.array(columns).reshape(-1, len(tried)).T


def ndcg_of_first_stage(lists: Iterable[SignalList]) -> Values:
    """(lists,) nDCG@10 within each list in the order of the first stage."""
    return np.array([_ndcg(-np.arange(len(item.relevance), dtype=np.float32), item.relevance) for item in lists])


def _scored(sampling: ExampleSampling, item: SignalList) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    example = sampling.as_served(item)
    return example.fused, example.relevance


def _ndcg(scores: npt.NDArray[np.float32], relevance: npt.NDArray[np.float32]) -> float:
    mask = torch.ones(1, len(scores), dtype=torch.bool)
    return float(ndcg_at_10(torch.from_numpy(scores)[None], torch.from_numpy(relevance)[None], mask))


def choose(values: Values) -> int:
    """The weights with the best mean; the first ones, the default, unless others are better by a standard error.

    The best of many weights on few lists is often worse on others. This is the one-standard-error rule (Breiman et al.,
    Classification and Regression Trees, 1984, section 3.4.3), with the error of the paired difference.

    Args:
        values: (weights, lists), at least two lists.
    """
    best = int(values.mean(axis=1).argmax())
    gains = values[best] - values[0]
    return best if gains.mean() > gains.std(ddof=1) / math.sqrt(len(gains)) else 0


def cross_validate(values: Values, seed: int) -> Values:
    """(lists,) nDCG@10 of each list with the weights that the other nine parts of the lists choose.

    Args:
        values: (weights, lists), at least four lists.
    """
    lists = np.random.default_rng(seed).permutation(values.shape[1])
    held_out = np.empty(len(lists))
    for part in np.array_split(lists, min(_FOLDS, len(lists) // 2)):
        held_out[part] = values[choose(np.delete(values, part, axis=1)), part]
    return held_out


def p_of_gain(values: Values, seed: int, permutations: int = _PERMUTATIONS) -> float:
    """One-sided p of the gain of `cross_validate` over the default: how often weights without effect gain as much.

    A sign-flip permutation test of the whole choice: for random lists, the differences of all weights from the default
    change their signs together, and the cross-validation is done again. A t-test would take the values of held-out
    lists as independent, but folds that choose the same weights are not.
    """
    differences, rng = values - values[0], np.random.default_rng(seed)
    found = cross_validate(differences, seed).mean()
    signs = (rng.choice([-1.0, 1.0], values.shape[1]) for _ in range(permutations))
    as_large = sum(cross_validate(differences * sign, seed).mean() >= found for sign in signs)
    return float((1 + as_large) / (1 + permutations))
