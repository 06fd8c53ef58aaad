"""Learned sparse vectors of texts (SPLADE, Formal et al., arXiv 2109.10086), and the hidden states behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

#: (T,) int32, increasing: ids of terms of a vocabulary.
TermIds: TypeAlias = npt.NDArray[np.int32]
#: (T,) float32, positive: one weight per term.
TermWeights: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector:
    """The weights of some terms of a vocabulary; the weights of all others are 0. Two vectors score by dot product.

    Attributes:
        terms: (T,) int32 ids of the terms, in increasing order.
        weights: (T,) float32 weights of the terms, above 0.
        is_truncated: the text was longer than the model reads, and this is the vector of its beginning.
    """

    terms: TermIds = field(repr=False)
    weights: TermWeights = field(repr=False)
    is_truncated: bool = False

    def unit(self) -> SparseVector:
        """The vector scaled to Euclidean length 1; unchanged if it has no terms."""
        length = float(np.linalg.norm(self.weights))
        return replace(self, weights=(self.weights / length).astype(np.float32)) if length else self

    @property
    def nbytes(self) -> int:
        """The memory of the numbers, in bytes."""
        return self.terms.nbytes + self.weights.nbytes

    def freeze(self) -> None:
        """Makes the arrays read-only."""
        self.terms.flags.writeable = self.weights.flags.writeable = False


@dataclass(frozen=True, slots=True, eq=False)
class TokenStates:
    """Hidden states of a text's tokens. Their product with the vocabulary's vectors gives the weights of the terms.

    A query has few terms, so a passage's score needs the product with these terms only, not the whole sparse vector.

    Attributes:
        states: (tokens, hidden) float16, or float32 where float16 would overflow.
        is_truncated: the text was longer than the model reads.
    """

    states: npt.NDArray[np.floating] = field(repr=False)
    is_truncated: bool = False

    @property
    def nbytes(self) -> int:
        """The memory of the states, in bytes."""
        return self.states.nbytes

    def freeze(self) -> None:
        """Makes the array read-only."""
        self.states.flags.writeable = False


#: The sparse encoding of a passage: its vector, or the states that give it.
SparseText: TypeAlias = SparseVector | TokenStates


def dot_products(query: SparseVector, vectors: Iterable[SparseVector], vocabulary_size: int) -> npt.NDArray[np.float32]:
    """(N,) float32 dot products of a query with N vectors over the same vocabulary.

    Args:
        vocabulary_size: number of terms, larger than each id.
    """
    given = list(vectors)
    if not given:
        return np.empty(0, dtype=np.float32)
    weights = np.zeros(vocabulary_size, dtype=np.float32)
    weights[query.terms] = query.weights
    products = np.concatenate([weights[vector.terms] * vector.weights for vector in given])
    owners = np.repeat(np.arange(len(given)), [len(vector.terms) for vector in given])
    return np.bincount(owners, weights=products, minlength=len(given)).astype(np.float32)
