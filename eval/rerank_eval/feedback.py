"""What relevance feedback does to the retriever: dense retrieval with the vectors of the queries, before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from ir_measures import Qrel, R, nDCG
from rich.console import Console

from rerank.models.encoder import Encoder
from rerank.retrieval.dense import query_vectors
from rerank.retrieval.index import Index, read_manifest
from rerank.retrieval.query_update import FeedbackSettings, Outcome, move
from rerank.types import FeedbackMethod, FirstStage, Query, ScoredDoc, Vector
from rerank_eval.experiment import Judge, Result
from rerank_eval.measures import Report, Run
from rerank_eval.output import print_table, write_text
from rerank_eval.report import ORACLE
from rerank_eval.statistics import paired_differences, t_test
from rerank_eval.table import SUMMARY_FILE, as_json, summary_of

MEASURES = (R @ 50, R @ 100, R @ 1000, nDCG @ 10)
#: Classical feedback is the baseline. KL is left out: the rankings of long lists have no scores that it could read.
METHODS = (FeedbackMethod.WEIGHTED_RANKNET, FeedbackMethod.ROCCHIO)
BEFORE = "dense"
_DEPTH = 1000
_BATCH = 64


@dataclass(frozen=True, slots=True)
class Followed:
    """The retriever after it followed one teacher: its measures, and of a query the mean cosine and milliseconds."""

    report: Report
    cosine: float
    unmoved: int
    move_ms: float


class FeedbackTrial:
    """Moves the vectors of all queries after a teacher and retrieves with them, to depth 1000.

    Args:
        index: a folder; its dense retriever is the one that learns.
        queries: by query_id.
        judge: with MEASURES.
    """

    def __init__(self, index: Path, queries: Mapping[str, Query], judge: Judge) -> None:
        encoder = Encoder(read_manifest(index).encoder.name)
        self._index = Index(index, encoder)
        self._queries = queries
        self._judge = judge
        self._vectors = dict(zip(queries, query_vectors(encoder, list(queries.values())), strict=True))
        self.before = self._retrieved(self._vectors)

    def follow(self, teacher: Run, method: FeedbackMethod) -> Followed:
        """After `teacher`: by query_id its passages with their scores, best first, ties where it has no preference."""
        settings = FeedbackSettings(method)
        vectors, cosines, unmoved, spent_s = dict(self._vectors), [], 0, 0.0
        for query_ids in _batches(self._queries, _BATCH):
            given = self._tensors([teacher.get(query_id, ())[: settings.top_k] for query_id in query_ids])
            stacked = torch.from_numpy(np.stack([vectors[query_id] for query_id in query_ids]))
            begun = time.perf_counter()
            moves = move(stacked, *given, settings)
            spent_s += time.perf_counter() - begun
            vectors |= zip(query_ids, moves.vectors.numpy(), strict=True)
            cosines += moves.cosines.tolist()
            unmoved += sum(outcome is not Outcome.MOVED for outcome in moves.outcomes)
        return Followed(self._retrieved(vectors), fmean(cosines), unmoved, spent_s * 1000 / len(self._queries))

    def _retrieved(self, vectors: Mapping[str, Vector]) -> Report:
        queries = [replace(query, vector=vectors[query_id]) for query_id, query in self._queries.items()]
        runs = self._index.retrievers[FirstStage.DENSE].search(queries, _DEPTH)
        return self._judge.report(dict(zip(self._queries, runs, strict=True)))

    def _tensors(self, taught: Sequence[Sequence[ScoredDoc]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Passages (Q, k, D), teacher (Q, k) and mask (Q, k), padded to the longest."""
        width = max(map(len, taught))
        passages = np.zeros((len(taught), width, self._index.store.vectors.shape[1]), dtype=np.float32)
        teacher, mask = np.zeros((len(taught), width), dtype=np.float32), np.zeros((len(taught), width), dtype=bool)
        for row, docs in enumerate(taught):
            for place, passage in enumerate(self._index.store.passages([doc.doc_id for doc in docs])):
                passages[row, place] = passage.vector
            teacher[row, : len(docs)] = [doc.score for doc in docs]
            mask[row, : len(docs)] = True
        return torch.from_numpy(passages), torch.from_numpy(teacher), torch.from_numpy(mask)


def grades(judged: Iterable[Qrel], found: Run) -> Run:
    """The judgements as a teacher of what was found: the bound of what feedback can do."""
    grade = {(qrel.query_id, qrel.doc_id): max(qrel.relevance, 0) for qrel in judged}
    return {
        query_id: [ScoredDoc(doc.doc_id, float(grade.get((query_id, doc.doc_id), 0))) for doc in docs]
        for query_id, docs in found.items()
    }


def publish_feedback(trial: FeedbackTrial, teachers: Mapping[str, Run], out: Path, seed: int, console: Console) -> None:
    """Prints the retriever before and after each teacher; writes feedback.json and its summary (folder `feedback`).

    Raises:
        ConfigError: the file cannot be written.
    """
    followed = {
        f"after {name}, {method}": trial.follow(teacher, method)
        for name, teacher in teachers.items()
        for method in METHODS
    }
    rows = {BEFORE: trial.before} | {name: row.report for name, row in followed.items()}
    print_table(console, f"dense retrieval to depth {_DEPTH}, before and after feedback", rows)
    for name, row in followed.items():
        console.print(
            f"{name}: cosine {row.cosine:.3f}, {row.unmoved} of {len(trial.before.per_query)} vectors unmoved, "
            f"{row.move_ms:.2f} ms a query"
        )
        for change in _changes(row.report, trial.before):
            console.print(
                f"  {change.measure}: {change.difference:+.4f}, p = {change.p:.2g} (paired t-test), "
                f"{change.wins}/{change.losses}/{change.ties} wins/losses/ties"
            )
    title = f"dense retrieval of {len(trial.before.per_query)} queries before and after feedback"
    results = [Result(BEFORE, trial.before)] + [
        Result(f"{BEFORE} after {name}", followed[f"after {name}, {METHODS[0]}"].report)
        for name in teachers
        if name != ORACLE
    ]
    write_text(out / "feedback" / SUMMARY_FILE, as_json(summary_of("feedback", title, results, seed)))
    write_text(out / "feedback.json", json.dumps(_as_json(trial.before, followed), indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class _Change:
    """A measure after feedback less before: mean, two-sided p of the paired t-test, queries."""

    measure: str
    difference: float
    p: float
    wins: int
    losses: int
    ties: int


def _changes(after: Report, before: Report) -> list[_Change]:
    found = []
    for name in before.mean:
        differences = paired_differences(after.values(name), before.values(name))
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        ties = len(differences) - wins - losses
        found.append(_Change(name, float(differences.mean()), t_test(differences), wins, losses, ties))
    return found


def _as_json(before: Report, followed: Mapping[str, Followed]) -> dict[str, object]:
    after = {
        name: asdict(row) | {"changes": [asdict(change) for change in _changes(row.report, before)]}
        for name, row in followed.items()
    }
    return {BEFORE: asdict(before), **after}


def _batches(query_ids: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(query_ids)
    while batch := list(islice(rest, size)):
        yield batch
