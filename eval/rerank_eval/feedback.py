"""Relevance feedback, measured where it works: dense retrieval before and after query vectors follow a ranking.

A listwise ranker gives an order, and weighted RankNet moves the vector by it (FIRST, arXiv 2406.15657); scores do it by
a divergence (ReFIT, arXiv 2305.11744). Rocchio (1971) is the baseline: it takes the first passages as relevant.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from ir_measures import R, nDCG
from rich.console import Console

from rerank.commands.progress import with_progress
from rerank.models.encoder import Encoder
from rerank.readers.qrels import grades_by_query
from rerank.retrieval.dense import query_vectors
from rerank.retrieval.index import Index, read_manifest
from rerank.retrieval.query_update import UpdateOutcome, teacher_of, update_queries
from rerank.types import FeedbackMethod, FeedbackSettings, FirstStage, Matrix, Query, ScoreKind
from rerank_eval.measures import Evaluator, MetricValues
from rerank_eval.report import SystemResult, comparisons, format_p, markdown_table
from rerank_eval.run_files import write_result
from rerank_eval.runner import Responses
from rerank_eval.settings import ORACLE, UPDATES, BeirSettings
from rerank_eval.tasks import Task

#: Name of dense retrieval before feedback.
BEFORE = "dense"
_DEPTH = 1000


@dataclass(frozen=True, slots=True)
class Teacher:
    """The rankings that a system gave of the first stage's passages.

    Attributes:
        rankings: query_id → doc_ids and scores, best first.
        kind: the meaning of the scores.
    """

    name: str
    rankings: Mapping[str, tuple[Sequence[str], Sequence[float]]]
    kind: ScoreKind


@dataclass(frozen=True, slots=True)
class AfterFeedback:
    """Dense retrieval after every query vector followed a teacher.

    Attributes:
        cosine: mean over the queries, between the updated and the original vector.
        kept: number of queries whose vector was not updated.
        update_ms: mean per query.
    """

    result: SystemResult
    cosine: float
    kept: int
    update_ms: float


def evaluate_feedback(
    task: Task, responses: Responses, settings: BeirSettings, index: Path, out: Path, console: Console
) -> None:
    """Prints dense retrieval before and after the feedback of each system, and writes feedback.md.

    Args:
        responses: of the systems, whose rankings are the teachers.
        index: its dense search is measured.

    Raises:
        IndexMismatch: the index cannot be read.
        ConfigError: the file cannot be written.
    """
    dense, teachers = DenseSearch.of(index, task), list(_teachers(task, responses))
    shown = with_progress(teachers, "feedback, teachers", len(teachers), console)
    after = [result for teacher in shown for result in dense.after(teacher, settings)]
    text = _report(len(dense.queries), dense.before, after)
    write_result(out / "feedback.md", f"# Relevance feedback: {task.title}\n\n{text}\n")
    console.print(text, soft_wrap=True, markup=False)


def _teachers(task: Task, responses: Responses) -> Iterator[Teacher]:
    """All systems, and the judgements of the first one's candidates, which are the upper bound."""
    for name, rows in responses.items():
        rankings = {row.query_id: (row.reply.doc_ids, row.reply.scores) for row in rows}
        kind = rows[0].reply.execution.get("score_kind", ScoreKind.RANK.value)
        yield Teacher(name, rankings, ScoreKind(kind))
    grades, best = grades_by_query(task.qrels), {}
    for row in next(iter(responses.values())):
        judged = grades.get(row.query_id, {})
        docs = sorted(row.reply.received, key=lambda doc_id: -judged.get(doc_id, 0))
        best[row.query_id] = docs, [float(judged.get(doc_id, 0)) for doc_id in docs]
    yield Teacher(ORACLE, best, ScoreKind.RANK)


@dataclass(frozen=True, slots=True)
class DenseSearch:
    """Dense retrieval of an index.

    Attributes:
        queries: by query_id, with `vectors` (Q, D).
        before: the result with these vectors.
    """

    index: Index
    queries: Mapping[str, Query]
    vectors: Matrix
    evaluator: Evaluator
    before: SystemResult

    @classmethod
    def of(cls, folder: Path, task: Task) -> DenseSearch:
        """The search of an index for the queries of a task, by its measures R@100, R@1000 and nDCG@10."""
        encoder = Encoder(read_manifest(folder).encoder.name)
        index = Index(folder, encoder)
        depths = (100, _DEPTH) if len(index.store) > _DEPTH else (100,)
        measures = (*(R(rel=task.rel) @ depth for depth in depths), nDCG @ 10)
        evaluator = replace(task.evaluator, measures=measures)
        vectors = query_vectors(encoder, list(task.queries.values()))
        search = cls(index, task.queries, vectors, evaluator, SystemResult(BEFORE, MetricValues({}, {})))
        return replace(search, before=SystemResult(BEFORE, search.measured(vectors)))

    def measured(self, vectors: Matrix) -> MetricValues:
        """The measures of dense retrieval with (Q, D) vectors."""
        queries = [replace(query, vector=vector) for query, vector in zip(self.queries.values(), vectors, strict=True)]
        found = self.index.search(FirstStage.DENSE, queries, _DEPTH)
        return self.evaluator.evaluate(dict(zip(self.queries, found, strict=True)))

    def after(self, teacher: Teacher, settings: BeirSettings) -> list[AfterFeedback]:
        """Dense retrieval after each query vector followed the teacher, by each loss that its scores allow."""
        rankings = [teacher.rankings[query_id] for query_id in self.queries]
        shown = [(doc_ids[: settings.feedback_passages], scores) for doc_ids, scores in rankings]
        vectors = self._passages([doc_ids for doc_ids, _ in shown])
        return [
            self._after(teacher, [scores for _, scores in shown], vectors, settings.feedback_settings(method))
            for method in settings.feedback_loss or UPDATES
            if method is not FeedbackMethod.KL or teacher.kind is not ScoreKind.RANK
        ]

    def _after(
        self,
        teacher: Teacher,
        scores: Sequence[Sequence[float]],
        passages: Sequence[Matrix],
        settings: FeedbackSettings,
    ) -> AfterFeedback:
        vectors, cosines, kept, update_s = self.vectors.copy(), list[float](), 0, 0.0
        for row, (found, of_query) in enumerate(zip(passages, scores, strict=True)):
            targets = torch.tensor(teacher_of(settings.method, of_query[: len(found)], teacher.kind))
            start = time.perf_counter()
            updates = update_queries(
                torch.from_numpy(vectors[row : row + 1]),
                torch.from_numpy(found)[None],
                targets[None],
                torch.ones(1, len(found), dtype=torch.bool),
                settings,
            )
            update_s += time.perf_counter() - start
            vectors[row] = updates.vectors[0].numpy()
            cosines += updates.cosines.tolist()
            kept += updates.outcomes[0] is not UpdateOutcome.UPDATED
        result = SystemResult(f"{BEFORE} after {teacher.name}, {settings.method}", self.measured(vectors))
        return AfterFeedback(result, fmean(cosines), kept, update_s * 1000 / len(passages))

    def _passages(self, rankings: Sequence[Sequence[str]]) -> list[Matrix]:
        """(k, D) vectors of the passages of each ranking, best first."""
        store, dimension = self.index.store, self.vectors.shape[1]
        return [
            np.array([passage.vector for passage in store.passages(doc_ids)], np.float32).reshape(-1, dimension)
            for doc_ids in rankings
        ]


def _report(queries: int, before: SystemResult, after: Sequence[AfterFeedback]) -> str:
    """Tables of all teachers and losses: against dense retrieval before feedback, and against the first after it."""
    measures, results = list(before.metrics.mean), [row.result for row in after]
    head = [f"{queries} queries", *(cell for name in measures for cell in (name, "p"))]
    costs = [["–"] * 3, *([f"{row.cosine:.3f}", str(row.kept), f"{row.update_ms:.2f}"] for row in after)]
    rows = [row + cost for row, cost in zip(_rows([before, *results], measures), costs, strict=True)]
    return "\n\n".join(
        [
            markdown_table([*head, "cosine", "kept", "ms"], rows),
            f"p: paired t-test against {BEFORE}, corrected by Holm over the rows. cosine: of the updated and the "
            "original query vector. kept: queries whose vector was not updated. ms: of the update, per query.",
            markdown_table(head, _rows(results, measures)),
            f"p: the same against {results[0].name}.",
        ]
    )


def _rows(results: Sequence[SystemResult], measures: Sequence[str]) -> list[list[str]]:
    """The measures of each result, each with the p of its difference from the first result."""
    p_values = {name: ["–", *(format_p(p) for _, _, p in comparisons(results, name))] for name in measures}
    return [
        [
            result.name,
            *(cell for name in measures for cell in (f"{result.metrics.mean[name]:.4f}", p_values[name][place])),
        ]
        for place, result in enumerate(results)
    ]
