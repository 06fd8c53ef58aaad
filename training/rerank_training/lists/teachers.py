"""Teachers: functions that assign a relevance to each passage of a training list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from rerank.config import load_config
from rerank.errors import ConfigError
from rerank.reranking.blocking import Reranker
from rerank.retrieval.feedback import teacher_of
from rerank.retrieval.hybrid import z_score_sum
from rerank.types import FeedbackMethod, Passage, Query, RankOptions, ScoreKind
from rerank_training.lists.sampling import Pool, cosine
from rerank_training.lists.settings import TeacherName
from rerank_training.lists.training_list import relevance_from_ranking

#: (pool, passages that were sampled for its query) → the relevance of each passage; higher is better.
Teacher: TypeAlias = Callable[[Pool, Sequence[Passage]], tuple[float, ...]]


def by_grades(pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
    """The judged grades of the pool; 0 for a passage without one."""
    return tuple(float(pool.grades.get(passage.doc_id, 0)) for passage in passages)


def by_fusion(pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
    """Cosine + 0.3 * first-stage score, as z-scores over the pool and the passages; see rerank/retrieval/hybrid.py.

    A passage that is not in the pool gets the lowest first-stage score of the pool.
    """
    first_stage = {c.doc_id: c.score for c in pool.candidates if c.score is not None}
    by_id = {passage.doc_id: passage for passage in [*pool.candidates, *passages]}
    cosines = {doc_id: cosine(pool.query, passage) for doc_id, passage in by_id.items()}
    fused = z_score_sum([first_stage, cosines], [0.3, 1.0])
    return tuple(fused[passage.doc_id] for passage in passages)


def by_reranker(
    pool: Pool, passages: Sequence[Passage], reranker: Reranker, model: str = "", reads_scores: bool = False
) -> tuple[float, ...]:
    """The order of one of this package's rankers, as relevance: n for the first of n passages, n - 1 for the second …

    Args:
        model: name of one of the reranker's models; empty: its first.
        reads_scores: whether the relevance is the ranker's scores instead, with probabilities as log odds.

    Raises:
        ConfigError: `reads_scores`, and the model gives an order without scores.
    """
    # The query and passages have no vectors, because the reranker may use another encoder.
    query = Query(pool.query.text, pool.query.query_id, pool.query.instruction)
    candidates = [Passage(passage.doc_id, passage.text) for passage in passages]
    options = RankOptions(model=model, first_stage_weight=0.0)  # the order of the list does not come from a first stage
    ranking = reranker.rerank(query, candidates, options)
    positions = [item.position for item in ranking.ranked]
    if not reads_scores:
        return relevance_from_ranking(positions, len(passages))
    if ranking.score_kind is ScoreKind.RANK and len(passages) > 1:
        raise ConfigError(
            f"{ranking.trace.model} gives {len(passages)} passages an order without scores, and this loss reads the "
            "distances between scores; use --rank-loss ranknet"
        )
    scores = teacher_of(FeedbackMethod.KL, [item.score for item in ranking.ranked], ranking.score_kind)
    return tuple(score for _, score in sorted(zip(positions, scores, strict=True)))


@contextmanager
def open_teacher(name: TeacherName, config: Path | None, model: str, reads_scores: bool = False) -> Iterator[Teacher]:
    """The teacher of this name. A reranker stays open until the block ends.

    Args:
        config: reranker only: settings of its models; None: the defaults.
        model: reranker only: name of one of its models; empty: its first.
        reads_scores: reranker only, see `by_reranker`.
    """
    match name:
        case TeacherName.QRELS:
            yield by_grades
        case TeacherName.FUSION:
            yield by_fusion
        case TeacherName.RERANKER:
            with Reranker(load_config(config)) as reranker:
                yield partial(by_reranker, reranker=reranker, model=model, reads_scores=reads_scores)
