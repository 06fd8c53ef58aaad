"""Diversity: passages that say the same as a better one stand further down, or are dropped.

Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): the next result is the passage with the largest

    (1 - diversity) · relevance - diversity · (its largest cosine with a result so far).

The relevance is the score of the ranking, scaled to 0 to 1 over its results, because the scores of rankers have no
common scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rerank.models.encoder import Encoder
from rerank.types import (
    InSlices,
    Matrix,
    NearDuplicates,
    Passage,
    Ranking,
    RankOptions,
    ScoreKind,
)

#: Passages with at least this cosine are near duplicates.
NEAR_DUPLICATE_COSINE = 0.92
#: Missing vectors are computed for so many results from the top; others without a vector keep their order behind them.
MAX_ENCODED = 100
#: Texts that are encoded at a time; of some 60 words, they take about 20 ms on a core.
_TEXTS_AT_ONCE = 4


def diversified(encoder: Encoder, ranking: Ranking, options: RankOptions) -> InSlices[Ranking]:
    """Chooses `options.top_n` results (0: all) by maximal marginal relevance, without near duplicates if asked for.

    With a diversity above 0 the scores become ranks, because the order is no longer that of the scores.
    """
    ranked, diversity = ranking.ranked, options.diversity
    limit, drops = options.top_n or len(ranked), options.near_duplicates == NearDuplicates.DROP
    vectors, truncated = yield from _vectors(encoder, [item.passage for item in ranked])
    numbers: dict[str, int] = {}
    text = np.array([numbers.setdefault(item.passage.text, len(numbers)) for item in ranked])
    value = (1 - diversity) * _scaled([item.score for item in ranked])
    cosine = np.zeros(len(ranked))
    has_vector = ~np.isnan(vectors[:, 0])
    is_left, order, dropped = has_vector.copy(), list[int](), dict[str, str]()
    while is_left.any() and len(order) < limit:
        best = int(np.where(is_left, value - diversity * cosine, -np.inf).argmax())
        is_left[best] = False
        is_equal = text == text[best]
        cosines = np.where(is_equal, 1.0, vectors @ vectors[best])
        closer = is_left & ((cosines > cosine) | (not order))
        cosine[closer] = cosines[closer]
        order.append(best)
        if drops:
            is_near = (cosines >= NEAR_DUPLICATE_COSINE) & ~truncated & ~truncated[best]
            for place in np.flatnonzero(is_left & (is_equal | is_near)).tolist():
                dropped[ranked[place].passage.doc_id] = ranked[best].passage.doc_id
                is_left[place] = False
        yield
    order += [place for place in range(len(ranked)) if not has_vector[place]][: limit - len(order)]
    trace = replace(ranking.trace, dropped=dropped)
    if not diversity:
        return replace(ranking, ranked=tuple(ranked[place] for place in order), trace=trace)
    with_ranks = tuple(replace(ranked[place], score=float(len(ranked) - new)) for new, place in enumerate(order))
    return Ranking(with_ranks, ScoreKind.RANK, trace)


def _vectors(encoder: Encoder, passages: Sequence[Passage]) -> InSlices[tuple[Matrix, npt.NDArray[np.bool_]]]:
    """(N, D) vectors, NaN where there is none, and (N,) whether each covers the beginning of a text only.

    Computes those that are missing near the top.
    """
    filled = [encoder.vector_cache.with_cached_vector(passage) for passage in passages]
    vectors = np.full((len(passages), encoder.id.dimension), np.nan, dtype=np.float32)
    truncated = np.array([passage.vector_truncated for passage in filled], dtype=np.bool_)
    missing: dict[str, list[int]] = {}
    for place, passage in enumerate(filled):
        if not passage.text.strip():
            continue  # it stands behind the others
        if passage.vector is not None:
            vectors[place] = passage.vector
        elif place < MAX_ENCODED or passage.text in missing:
            missing.setdefault(passage.text, []).append(place)
    texts = sorted(missing, key=len)  # texts of like lengths need little padding
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[start : start + _TEXTS_AT_ONCE]
        beginnings = [encoder.beginning(text) for text in some]
        found = zip(some, encoder.encode_passages(beginnings, "auto"), encoder.is_truncated(beginnings), strict=True)
        for text, vector, is_truncated in found:
            encoder.vector_cache.put(text, vector, is_truncated)
            vectors[missing[text]], truncated[missing[text]] = vector, is_truncated
        yield
    return vectors, truncated


def _scaled(scores: Sequence[float]) -> npt.NDArray[np.float64]:
    """(N,) the scores, scaled to 0 to 1; 1 if all are equal."""
    values = np.array(scores, dtype=np.float64)
    spread = np.ptp(values) if len(values) else 0.0
    return (values - values.min()) / spread if spread else np.ones(len(values))
