"""Tasks of an evaluation: for each dataset that the flags name, queries with candidates, and judgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel
from rerank.readers.requests import CandidateList, read_requests
from rerank.types import FirstStage, Query
from rerank.util.files import sha256_of_files
from rerank_eval.candidates import candidates_of_run, first_candidates
from rerank_eval.datasets import Dataset, open_dataset, open_qrels, qrels_sha256
from rerank_eval.measures import Evaluator, least_relevant_grade, measures_from
from rerank_eval.overlap import candidate_ids, check_index, check_lists, judgements_of, nothing_to_rank
from rerank_eval.selection import select
from rerank_eval.settings import BeirSettings, EvaluationSettings, TrecDLSettings
from rerank_eval.sources import GivenLists, Search, Source

_Settings: TypeAlias = BeirSettings | TrecDLSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One dataset to evaluate on: its queries with a source of candidates, and its judgements.

    Attributes:
        name: of the dataset.
        title: heading of the report.
        evaluator: measures by the judgements of the queries that count.
        qrels: all judgements, also of queries that are not asked; `qrels_sha256` is their hash.
        rel: least grade that counts as relevant.
        notes: sentences for the reader where judgements and data cover each other only in part.
        index: folder of the index with which a service is started.
    """

    name: str
    title: str
    source: Source
    evaluator: Evaluator
    qrels: Sequence[Qrel]
    qrels_sha256: str
    rel: int
    notes: tuple[str, ...] = ()
    index: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """One dataset as the flags name it, with its candidates: lists in a file, or the search of a service.

    Attributes:
        name: of the dataset; empty: that of the collection.
        lists: request file, or run of the collection; None: a service searches by `first_stage`.
        qrels: file or name of the judgements; None: those of the collection.
    """

    name: str = ""
    lists: Path | None = None
    first_stage: FirstStage | None = None
    qrels: str | None = None
    collection: str | None = None
    index: Path | None = None

    @property
    def origin(self) -> str:
        """The flag's value that has the queries, for messages."""
        return str(self.lists or self.collection)


def open_tasks(settings: EvaluationSettings) -> list[Task]:
    """Reads all datasets, before the first query runs.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
    """
    if isinstance(settings, BeirSettings):
        return [_open(given, settings) for given in _given_to_beir(settings)]
    if isinstance(settings, TrecDLSettings):
        return [_open(given, settings) for given in _given_to_trec_dl(settings)]
    raise AssertionError(f"{type(settings).__name__} are the settings of no command; this is a bug")


def _given_to_beir(settings: BeirSettings) -> list[_Given]:
    indexes, collections = settings.index, settings.collection
    if indexes and len(indexes) != len(collections):
        raise ConfigError(f"{len(collections)} --collection, {len(indexes)} --index; give one for each, in this order")
    if not indexes and not (settings.target and len(collections) == 1):
        raise ConfigError(
            "no source of candidates: give --index DIR for each collection, or --target HOST:PORT of a service with an "
            "index of the only collection; a TREC run is evaluated by eval-trec-dl --requests RUN --collection NAME"
        )
    if settings.feedback and not indexes:
        raise ConfigError("--feedback searches the index with the changed query vectors; give --index DIR")
    return [
        _Given(collection=collection, index=index, first_stage=settings.first_stage)
        for collection, index in zip_longest(collections, indexes)
    ]


def _given_to_trec_dl(settings: TrecDLSettings) -> list[_Given]:
    requests, qrels, collections = settings.requests, settings.qrels, settings.collection
    for flag, values in (("--qrels", qrels), ("--collection", collections)):
        if values and len(values) != len(requests):
            raise ConfigError(
                f"{len(requests)} --requests and {len(values)} {flag}; give one for each --requests, in the same order"
            )
    if not qrels and not collections:
        raise ConfigError("no judgements: give --qrels FILE, or --collection NAME of a collection that has some")
    return [
        _Given(name=name, lists=path, qrels=judged, collection=collection)
        for name, path, judged, collection in zip_longest(_names(requests), requests, qrels, collections)
    ]


def _open(given: _Given, settings: _Settings) -> Task:
    dataset = open_dataset(given.collection, settings.split) if given.collection else None
    requests, unjudged = _requests(given, dataset, settings)
    qrels, sha256 = _judgements(given, dataset, requests)
    asked = {request.query.query_id: request.query for request in requests} or (dataset.queries if dataset else {})
    queries, notes = select(asked, qrels, settings)
    counted, more_notes = judgements_of([*queries, *unjudged], qrels, given.origin)
    source, source_notes = _source(given, settings, _fingerprint(given, dataset, settings), requests, queries, qrels)
    name = given.name or (dataset.name if dataset else "")
    first_stage = given.first_stage.value if given.first_stage else Path(given.origin).name
    rel = least_relevant_grade(qrels, settings.rel)
    return Task(
        name=name,
        title=f"{len(queries)} queries of {name}, {first_stage}, depth {settings.depth or 'all'}",
        source=source,
        evaluator=Evaluator(measures_from(rel), counted, qrels if dataset else ()),
        qrels=qrels,
        qrels_sha256=sha256,
        rel=rel,
        notes=(*notes, *more_notes, *source_notes),
        index=given.index,
    )


def _requests(
    given: _Given, dataset: Dataset | None, settings: _Settings
) -> tuple[Sequence[CandidateList], Sequence[str]]:
    """The lists of a file, and its queries without judgements as far as a run has them; none for a search."""
    if given.lists is None:
        return [], []
    if dataset:
        requests, unjudged = candidates_of_run(given.lists, dataset, settings.depth)
    else:
        requests, unjudged = read_requests(given.lists), []
    return [first_candidates(request, settings.depth) for request in requests], unjudged


def _judgements(
    given: _Given, dataset: Dataset | None, requests: Sequence[CandidateList]
) -> tuple[Sequence[Qrel], str]:
    """The judgements, and their SHA-256."""
    if given.qrels:
        return open_qrels(given.qrels, candidate_ids(requests))
    if dataset is None:
        raise AssertionError("a dataset has neither judgements nor a collection; this is a bug")
    return dataset.qrels, qrels_sha256(dataset.qrels)


def _source(
    given: _Given,
    settings: _Settings,
    fingerprint: Mapping[str, object],
    requests: Sequence[CandidateList],
    queries: Mapping[str, Query],
    qrels: Sequence[Qrel],
) -> tuple[Source, tuple[str, ...]]:
    """The candidates of the queries that are asked, with a note if some have none."""
    if given.first_stage:
        if given.index:
            check_index(given.index, qrels, given.origin)
        feedback = settings.second_search if isinstance(settings, BeirSettings) else None
        return Search(queries, fingerprint, given.first_stage, settings.depth, feedback), ()
    by_id = {request.query.query_id: request.candidates for request in requests}
    lists = {query_id: CandidateList(query, by_id[query_id]) for query_id, query in queries.items()}
    check_lists(lists.values(), qrels, given.origin)
    return GivenLists(lists, fingerprint), nothing_to_rank(lists.values())


def _fingerprint(given: _Given, dataset: Dataset | None, settings: _Settings) -> dict[str, object]:
    """Every setting that decides the candidates."""
    files = {"requests_sha256": given.lists, "asked_sha256": settings.queries}
    return {
        "depth": settings.depth,
        **({"first_stage": given.first_stage.value} if given.first_stage else {}),
        **{name: sha256_of_files([path]) for name, path in files.items() if path},
        **({"queries_sha256": dataset.queries_sha256} if dataset else {}),
    }


def _names(requests: Sequence[Path]) -> list[str]:
    """The name of each file's folder; with the file's own name where two folders have the same."""
    folders = [path.absolute().parent.name for path in requests]
    if len(set(folders)) == len(folders):
        return folders
    return [f"{folder}-{path.stem}" for folder, path in zip(folders, requests, strict=True)]
