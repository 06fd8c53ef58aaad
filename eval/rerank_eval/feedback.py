"""Measures relevance feedback: dense retrieval before and after a ranking has updated the query vectors.

With the order of a listwise ranker, a vector is updated by weighted RankNet (FIRST, arXiv 2406.15657); with scores by
a divergence (ReFIT, arXiv 2305.11744). Rocchio (1971), the baseline, takes the first passages as relevant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from ir_measures import R, nDCG
from rich.console import Console

from rerank.commands.progress import with_progress
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import grades_by_query
from rerank.retrieval.dense import query_vectors
from rerank.retrieval.feedback import UpdateOutcome, teacher_of, update_queries
from rerank.retrieval.index import Index, read_manifest
from rerank.types import FeedbackMethod, FeedbackSettings, FirstStage, Matrix, ScoreKind
from rerank_eval.datasets import Dataset
from rerank_eval.measures import MetricValues, Response
from rerank_eval.report import SystemResult, comparisons, format_p, markdown_table
from rerank_eval.runs import write_result
from rerank_eval.settings import ORACLE, UPDATES, BeirSettings

#: Name of dense retrieval before feedback.
BEFORE = "dense"
#: Number of passages that dense retrieval finds for a query.
_DEPTH = 1000


@dataclass(frozen=True, slots=True)
class Teacher:
    """A system's rankings of the first stage's passages, which update the query vectors.

    Attributes:
        rankings: query_id → doc_ids and scores, best first.
        kind: the meaning of the scores.
        preranker: query_id → the scores of a cascade's preranker in the same order, as logits; nan for a passage
            without a score. Empty without a preranker, or if its scores cannot be compared.
    """

    name: str
    rankings: Mapping[str, tuple[Sequence[str], Sequence[float]]]
    kind: ScoreKind
    preranker: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def allows(self, method: FeedbackMethod) -> bool:
        """True if the teacher has the scores that the method reads."""
        if method is FeedbackMethod.CHAIN:
            return bool(self.preranker)
        return method is not FeedbackMethod.KL or self.kind is not ScoreKind.RANK


def evaluate_feedback(
    index: Path,
    dataset: Dataset,
    responses: Mapping[str, Sequence[Response]],
    settings: BeirSettings,
    out: Path,
    console: Console,
) -> None:
    """Prints the measures of dense retrieval before and after feedback by each system, and writes feedback.md.

    Args:
        index: folder of the index whose dense search is measured.
        responses: name of each system → its responses, whose rankings are the teachers.

    Raises:
        IndexMismatch: the index cannot be read.
        ConfigError: the file cannot be written, or no system has the scores that the losses read.
    """
    dense, teachers = DenseSearch(index, dataset), list(_teachers(dataset, responses))
    before = SystemResult(BEFORE, dense.measured(dense.vectors))
    shown = with_progress(teachers, "feedback, teachers", len(teachers), console)
    after = [result for teacher in shown for result in dense.after(teacher, settings)]
    if not after:
        losses = ", ".join(settings.feedback_loss)
        raise ConfigError(
            f"no system has the scores that --feedback-loss {losses} reads; leave it out, which gives all"
        )
    text = _report(len(dataset.queries), before, after)
    write_result(out / "feedback.md", f"# Relevance feedback: {dataset.title}\n\n{text}\n")
    console.print(text, soft_wrap=True, markup=False)


def _teachers(dataset: Dataset, responses: Mapping[str, Sequence[Response]]) -> Iterator[Teacher]:
    """A teacher for each system, and one that ranks the candidates by their judgements, as the upper bound."""
    for name, rows in responses.items():
        kind = rows[0].execution.get("score_kind", ScoreKind.RANK.value)
        preranker = {
            row.query_id: teacher_of(
                FeedbackMethod.KL, row.preranker_scores, ScoreKind(row.execution["preranker_score_kind"])
            )
            for row in rows
            if row.preranker_scores
        }
        rankings = {row.query_id: (row.doc_ids, row.scores) for row in rows}
        yield Teacher(name, rankings, ScoreKind(kind), preranker)
    grades, best = grades_by_query(dataset.qrels), {}
    for row in next(iter(responses.values())):
        judged = grades.get(row.query_id, {})
        docs = sorted(row.first_stage_doc_ids, key=lambda doc_id: -judged.get(doc_id, 0))
        best[row.query_id] = docs, [float(judged.get(doc_id, 0)) for doc_id in docs]
    yield Teacher(ORACLE, best, ScoreKind.RANK)


class DenseSearch:
    """Dense retrieval of an index for the queries of a dataset, measured by R@100, R@1000 and nDCG@10.

    Attributes:
        vectors: (Q, D) vectors of the queries.
    """

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        encoder = Encoder(read_manifest(folder).encoder.name)
        self._index, self._dataset = Index(folder, encoder), dataset
        depths = (100, _DEPTH) if len(self._index.store) > _DEPTH else (100,)
        self._measures = (*(R(rel=dataset.rel) @ depth for depth in depths), nDCG @ 10)
        self.vectors = query_vectors(encoder, list(dataset.queries.values()))

    def measured(self, vectors: Matrix) -> MetricValues:
        """The measures of dense retrieval with (Q, D) vectors."""
        queries = [
            replace(query, vector=vector) for query, vector in zip(self._dataset.queries.values(), vectors, strict=True)
        ]
        found = self._index.search(FirstStage.DENSE, queries, _DEPTH)
        return self._dataset.measure(dict(zip(self._dataset.queries, found, strict=True)), self._measures)

    def after(self, teacher: Teacher, settings: BeirSettings) -> list[SystemResult]:
        """The measures after the teacher has updated all query vectors, for each loss that its scores allow.

        `cost` has the mean cosine of updated and original vectors, the number of vectors that were not updated, and the
        mean time of an update in ms.
        """
        rankings = [teacher.rankings[query_id] for query_id in self._dataset.queries]
        vectors = self._passages([doc_ids[: FeedbackSettings().top_k] for doc_ids, _ in rankings])
        return [
            self._after(teacher, vectors, settings.feedback_settings(method))
            for method in settings.feedback_loss or UPDATES
            if teacher.allows(method)
        ]

    def _after(self, teacher: Teacher, passages: Sequence[Matrix], settings: FeedbackSettings) -> SystemResult:
        vectors, cosines, kept, update_s = self.vectors.copy(), list[float](), 0, 0.0
        for row, (query_id, found) in enumerate(zip(self._dataset.queries, passages, strict=True)):
            n = len(found)
            scores, preranker = teacher.rankings[query_id][1], teacher.preranker.get(query_id, [math.nan] * n)
            start = time.perf_counter()
            updates = update_queries(
                torch.from_numpy(vectors[row : row + 1]),
                torch.from_numpy(found)[None],
                torch.tensor([teacher_of(settings.method, scores[:n], teacher.kind)]),
                torch.ones(1, n, dtype=torch.bool),
                settings,
                torch.tensor([preranker[:n]], dtype=torch.float32),
            )
            update_s += time.perf_counter() - start
            vectors[row] = updates.vectors[0].numpy()
            cosines += updates.cosines.tolist()
            kept += updates.outcomes[0] is not UpdateOutcome.UPDATED
        cost = {"cosine": fmean(cosines), "kept": kept, "ms": update_s * 1000 / len(passages)}
        return SystemResult(f"{BEFORE} after {teacher.name}, {settings.method}", self.measured(vectors), cost)

    def _passages(self, rankings: Sequence[Sequence[str]]) -> list[Matrix]:
        """(k, D) vectors of the passages of each ranking, best first."""
        store, dimension = self._index.store, self.vectors.shape[1]
        return [
            np.array([passage.vector for passage in store.passages(doc_ids)], np.float32).reshape(-1, dimension)
            for doc_ids in rankings
        ]


def _report(queries: int, before: SystemResult, after: Sequence[SystemResult]) -> str:
    """Two tables of all teachers and losses, compared with dense retrieval before feedback, and with the first row."""
    measures = list(before.metrics.mean)
    head = [f"{queries} queries", *(cell for name in measures for cell in (name, "p"))]
    formats = {"cosine": ".3f", "kept": ".0f", "ms": ".2f"}
    costs = [["–"] * 3, *([f"{row.cost[name]:{form}}" for name, form in formats.items()] for row in after)]
    rows = [row + cost for row, cost in zip(_rows([before, *after], measures), costs, strict=True)]
    return "\n\n".join(
        [
            markdown_table([*head, *formats], rows),
            f"p: paired t-test against {BEFORE}, corrected by Holm over the rows. cosine: of the updated and the "
            "original query vector. kept: queries whose vector was not updated. ms: of the update, per query.",
            markdown_table(head, _rows(after, measures)),
            f"p: the same against {after[0].name}.",
        ]
    )


def _rows(results: Sequence[SystemResult], measures: Sequence[str]) -> list[list[str]]:
    """The measures of each result, each with the p-value of its difference from the first result."""
    p_values = {name: ["–", *(format_p(p) for _, _, p in comparisons(results, name))] for name in measures}
    return [
        [
            result.name,
            *(cell for name in measures for cell in (f"{result.metrics.mean[name]:.4f}", p_values[name][index])),
        ]
        for index, result in enumerate(results)
    ]
