"""Evaluation of relevance feedback: dense retrieval with the query vectors before and after they follow a ranking."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from ir_measures import R, nDCG
from rich.console import Console

from rerank.commands.progress import with_progress
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.retrieval.dense import query_vectors
from rerank.retrieval.index import Index, read_manifest
from rerank.retrieval.query_update import UpdateOutcome, update_queries
from rerank.types import FeedbackMethod, FeedbackSettings, FirstStage, Query, ScoredDoc, Vector
from rerank_eval.measures import Evaluator, MetricValues, Run, paired_values
from rerank_eval.report import ORACLE
from rerank_eval.report_writer import print_table
from rerank_eval.results import SystemResult
from rerank_eval.run_files import write_text
from rerank_eval.statistics import count_signs, paired_differences, t_test
from rerank_eval.table import SUMMARY_FILE, summarize, summary_json

FEEDBACK_MEASURES = (R @ 50, R @ 100, R @ 1000, nDCG @ 10)
#: Rocchio is the classical baseline. KL needs scores, which the rankings of long lists do not have.
METHODS = (FeedbackMethod.WEIGHTED_RANKNET, FeedbackMethod.ROCCHIO)
#: Name of dense retrieval before feedback.
BEFORE = "dense"
_DEPTH = 1000
_BATCH = 64


@dataclass(frozen=True, slots=True)
class FeedbackResult:
    """Dense retrieval after the query vectors followed one teacher.

    Attributes:
        cosine: mean over the queries, between the updated and the original vector.
        kept: number of queries whose vector was not updated.
        update_ms: mean per query.
    """

    metrics: MetricValues
    cosine: float
    kept: int
    update_ms: float


class FeedbackExperiment:
    """Updates the vectors of all queries after a teacher's rankings and retrieves 1,000 passages with each.

    Args:
        index: folder of an index; its dense retriever is the one that searches.
        queries: by query_id.
        evaluator: with FEEDBACK_MEASURES.
    """

    def __init__(self, index: Path, queries: Mapping[str, Query], evaluator: Evaluator) -> None:
        encoder = Encoder(read_manifest(index).encoder.name)
        self._index = Index(index, encoder)
        self._queries = queries
        self._evaluator = evaluator
        self._vectors = dict(zip(queries, query_vectors(encoder, list(queries.values())), strict=True))
        self.before = self._retrieve(self._vectors)

    def retrieve_after(self, teacher: Run, method: FeedbackMethod) -> FeedbackResult:
        """Dense retrieval after every query vector followed the teacher.

        Args:
            teacher: by query_id, passages with their scores, best first; equal scores state no preference.
        """
        settings = FeedbackSettings(method)
        vectors, cosines, kept, update_s = dict(self._vectors), [], 0, 0.0
        for first in range(0, len(self._queries), _BATCH):
            query_ids = list(self._queries)[first : first + _BATCH]
            tensors = self._tensors([teacher.get(query_id, ())[: settings.top_k] for query_id in query_ids])
            stacked = torch.from_numpy(np.stack([vectors[query_id] for query_id in query_ids]))
            start = time.perf_counter()
            updates = update_queries(stacked, *tensors, settings)
            update_s += time.perf_counter() - start
            vectors |= zip(query_ids, updates.vectors.numpy(), strict=True)
            cosines += updates.cosines.tolist()
            kept += sum(outcome is not UpdateOutcome.UPDATED for outcome in updates.outcomes)
        return FeedbackResult(self._retrieve(vectors), fmean(cosines), kept, update_s * 1000 / len(self._queries))

    def _retrieve(self, vectors: Mapping[str, Vector]) -> MetricValues:
        queries = [replace(query, vector=vectors[query_id]) for query_id, query in self._queries.items()]
        rankings = self._index.search(FirstStage.DENSE, queries, _DEPTH)
        return self._evaluator.evaluate(dict(zip(self._queries, rankings, strict=True)))

    def _tensors(self, rankings: Sequence[Sequence[ScoredDoc]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Passages (Q, k, D), teacher (Q, k) and mask (Q, k), padded to the longest ranking."""
        width = max(map(len, rankings))
        passages = np.zeros((len(rankings), width, self._index.store.vectors.mapped.shape[1]), dtype=np.float32)
        teacher = np.zeros((len(rankings), width), dtype=np.float32)
        mask = np.zeros((len(rankings), width), dtype=bool)
        for row, docs in enumerate(rankings):
            for rank, passage in enumerate(self._index.store.passages([doc.doc_id for doc in docs])):
                passages[row, rank] = passage.vector
            teacher[row, : len(docs)] = [doc.score for doc in docs]
            mask[row, : len(docs)] = True
        return torch.from_numpy(passages), torch.from_numpy(teacher), torch.from_numpy(mask)


def teacher_of_grades(qrels: Iterable[Qrel], run: Run) -> Run:
    """The judged grades of a run's passages as a teacher: the upper bound for feedback."""
    grades = {(qrel.query_id, qrel.doc_id): max(qrel.relevance, 0) for qrel in qrels}
    return {
        query_id: [ScoredDoc(doc.doc_id, float(grades.get((query_id, doc.doc_id), 0))) for doc in docs]
        for query_id, docs in run.items()
    }


def write_feedback_report(
    experiment: FeedbackExperiment,
    teachers: Mapping[str, Run],
    out: Path,
    seed: int,
    console: Console,
    notes: Sequence[str] = (),
) -> None:
    """Prints dense retrieval before and after each teacher; writes feedback.json and feedback/summary.json.

    Args:
        teachers: rankings by the name of the system that made them.
        seed: of the permutation test.
        notes: sentences about the judgements, written into summary.json.

    Raises:
        ConfigError: the files cannot be written.
    """
    pairs = [(name, method) for name in teachers for method in METHODS]
    results = {
        f"after {name}, {method}": experiment.retrieve_after(teachers[name], method)
        for name, method in with_progress(pairs, "feedback, teachers and methods", len(pairs), console)
    }
    _print(experiment.before, results, console)
    title = f"dense retrieval of {len(experiment.before.per_query)} queries before and after feedback"
    summarized = [SystemResult(BEFORE, experiment.before)] + [
        SystemResult(f"{BEFORE} after {name}", results[f"after {name}, {METHODS[0]}"].metrics)
        for name in teachers
        if name != ORACLE
    ]
    write_text(out / "feedback" / SUMMARY_FILE, summary_json(summarize("feedback", title, summarized, seed, notes)))
    write_text(out / "feedback.json", json.dumps(_as_json(experiment.before, results), indent=2) + "\n")


def _print(before: MetricValues, results: Mapping[str, FeedbackResult], console: Console) -> None:
    rows = {BEFORE: before} | {name: result.metrics for name, result in results.items()}
    print_table(console, f"dense retrieval to depth {_DEPTH}, before and after feedback", rows)
    for name, result in results.items():
        console.print(
            f"{name}: cosine {result.cosine:.3f}, {result.kept} of {len(before.per_query)} vectors not updated, "
            f"{result.update_ms:.2f} ms per query"
        )
        for change in _changes(result.metrics, before):
            console.print(
                "  {measure}: {difference:+.4f}, p = {p:.2g} (paired t-test), {wins}/{losses}/{ties} wins/losses/ties"
                "".format(**change)
            )


def _changes(after: MetricValues, before: MetricValues) -> list[dict[str, Any]]:
    """Each measure after feedback minus before: the mean, the two-sided p of the paired t-test, and queries by sign."""
    changes = []
    for name in before.mean:
        differences = paired_differences(*paired_values(after, before, name))
        wins, ties, losses = count_signs(differences)
        change = {"measure": name, "difference": float(differences.mean()), "p": t_test(differences)}
        changes.append(change | {"wins": wins, "losses": losses, "ties": ties})
    return changes


def _as_json(before: MetricValues, results: Mapping[str, FeedbackResult]) -> dict[str, object]:
    after = {
        name: {
            "report": asdict(result.metrics),
            "cosine": result.cosine,
            "unmoved": result.kept,
            "move_ms": result.update_ms,
            "changes": _changes(result.metrics, before),
        }
        for name, result in results.items()
    }
    return {BEFORE: asdict(before), **after}
