"""Tasks of an evaluation: for each dataset that the flags name, queries with candidates, and judgements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeAlias

from rerank.collections import beir
from rerank.errors import CollectionError, ConfigError
from rerank.readers.candidates import CandidateList, read_requests
from rerank.readers.lines import distinct, parsed_lines
from rerank.readers.qrels import Qrel
from rerank.readers.queries import parse_query
from rerank.types import FirstStage, Passage, Query
from rerank.util.files import sha256_of_files
from rerank_eval.datasets import Dataset, open_dataset, open_qrels, qrels_sha256
from rerank_eval.measures import Evaluator, Run, by_rank, least_relevant_grade, measures_from
from rerank_eval.overlap import check_doc_ids, check_index, judgements_of, listed, nothing_to_rank, without_relevant
from rerank_eval.run_files import candidates_of_run
from rerank_eval.runner import Responses
from rerank_eval.settings import BeirSettings, EvaluationSettings, TrecDLSettings
from rerank_eval.systems import ServedSystem
from rerank_eval.trace import NOTHING, RankedList

_Settings: TypeAlias = BeirSettings | TrecDLSettings
#: Names of files and folders that say nothing of the dataset.
_JUDGEMENTS = {"qrels", "qrel", "judgements", "judgments", "test", "dev", "train"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One dataset to evaluate on: its queries with their candidates, and its judgements.

    Attributes:
        name: of the dataset.
        title: heading of the report.
        queries: those that are asked, by query_id.
        lists: the candidates of each query; None: a service searches by `first_stage`, `depth` candidates.
        fingerprint: every setting that decides the candidates.
        feedback: fields of the message Feedback (rerank.proto), of a second search; None: there is none.
        evaluator: measures by the judgements of the queries that count.
        qrels: all judgements, also of queries that are not asked; `qrels_sha256` is their hash.
        rel: least grade that counts as relevant.
        notes: sentences for the reader where judgements and data cover each other only in part.
        index: folder of the index of a service that is started.
    """

    name: str
    title: str
    queries: Mapping[str, Query]
    lists: Mapping[str, Sequence[Passage]] | None
    first_stage: FirstStage | None
    depth: int
    fingerprint: Mapping[str, object]
    feedback: Mapping[str, object] | None
    evaluator: Evaluator
    qrels: Sequence[Qrel]
    qrels_sha256: str
    rel: int
    notes: tuple[str, ...]
    index: Path | None

    def ask(self, system: ServedSystem, query_id: str, feedback: Mapping[str, object] | None = None) -> RankedList:
        """Asks a system to rank the candidates of a query; with `feedback`, after a second search."""
        query = self.queries[query_id]
        if self.lists is not None:
            candidates = self.lists[query_id]
            return system.rerank(query, candidates) if candidates else NOTHING
        options = {"feedback": feedback} if feedback else {}
        return system.search(query, first_stage=self.first_stage, depth=self.depth, **options)

    def received(self, responses: Responses) -> Run:
        """The candidates in the order of the first stage; a search's as the first system received them."""
        if self.lists is not None:
            return {query_id: by_rank(doc.doc_id for doc in docs) for query_id, docs in self.lists.items()}
        return {response.query_id: by_rank(response.reply.received) for response in next(iter(responses.values()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """One dataset as the flags name it, with its candidates: lists in a file, or the search of a service.

    Attributes:
        name: of the dataset; empty: the collection's.
        lists: request file, or run of the collection; None: a service searches by `first_stage`.
        qrels: file or name of the judgements; None: the collection's.
    """

    name: str = ""
    lists: Path | None = None
    first_stage: FirstStage | None = None
    qrels: str | None = None
    collection: str | None = None
    index: Path | None = None


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
        for name, path, judged, collection in zip_longest(
            _names(requests, qrels, collections), requests, qrels, collections
        )
    ]


def _open(given: _Given, settings: _Settings) -> Task:
    dataset = open_dataset(given.collection, settings.split) if given.collection else None
    requests, unjudged = _requests(given.lists, dataset, settings.depth) if given.lists else ([], [])
    qrels, sha256 = _judgements(given, dataset, requests)
    origin = str(given.lists or given.collection)
    asked = {request.query.query_id: request.query for request in requests} or (dataset.queries if dataset else {})
    queries, notes = _select(asked, qrels, settings)
    counted, more_notes = judgements_of([*queries, *unjudged], qrels, origin)
    notes = (*notes, *more_notes)
    lists = None
    if given.lists:
        candidates = {request.query.query_id: request.candidates for request in requests}
        lists = {query_id: candidates[query_id] for query_id in queries}
        check_doc_ids(_doc_ids(lists.values()), qrels, f"candidates of {origin}")
        notes += nothing_to_rank(lists)
    elif given.index:
        check_index(given.index, qrels, origin)
    name = given.name or (dataset.name if dataset else "")
    rel = least_relevant_grade(qrels, settings.rel)
    notes += without_relevant(counted, rel)
    feedback, without_feedback = _feedback(given, settings)
    searched = given.first_stage.value if given.first_stage else Path(origin).name
    return Task(
        name=name,
        title=f"{len(queries)} queries of {name}, {searched}, depth {settings.depth or 'all'}",
        queries=queries,
        lists=lists,
        first_stage=given.first_stage,
        depth=settings.depth,
        fingerprint=_fingerprint(given, dataset, settings),
        feedback=feedback,
        evaluator=Evaluator(measures_from(rel), counted, qrels if dataset else ()),
        qrels=qrels,
        qrels_sha256=sha256,
        rel=rel,
        notes=(*notes, *without_feedback),
        index=given.index,
    )


def _requests(path: Path, dataset: Dataset | None, depth: int) -> tuple[Sequence[CandidateList], Sequence[str]]:
    """The lists of a run or a request file, and the queries of the former without judgements."""
    if dataset:
        return candidates_of_run(path, dataset, depth)
    return [replace(request, candidates=request.candidates[: depth or None]) for request in read_requests(path)], []


def _judgements(
    given: _Given, dataset: Dataset | None, requests: Sequence[CandidateList]
) -> tuple[Sequence[Qrel], str]:
    """The judgements, and their SHA-256."""
    if given.qrels:
        return open_qrels(given.qrels, _doc_ids(request.candidates for request in requests))
    if dataset is None:
        raise AssertionError("a dataset has neither judgements nor a collection; this is a bug")
    return dataset.qrels, qrels_sha256(dataset.qrels)


def _doc_ids(lists: Iterable[Sequence[Passage]]) -> set[str]:
    return {passage.doc_id for candidates in lists for passage in candidates}


def _feedback(given: _Given, settings: _Settings) -> tuple[Mapping[str, object] | None, tuple[str, ...]]:
    """Returns the settings of the second search, or None, with a note if the first stage cannot have the one asked for.

    It must have a query vector to update.
    """
    asked = settings.second_search if isinstance(settings, BeirSettings) else None
    if asked is None or (given.first_stage and given.first_stage.reads_vectors):
        return asked, ()
    return None, (f"{given.first_stage or 'a run'} has no query vector to update, so there is no second search.",)


def _fingerprint(given: _Given, dataset: Dataset | None, settings: _Settings) -> dict[str, object]:
    """Every setting that decides the candidates."""
    asked = beir.queries_file(settings.queries) if settings.queries else None
    files = {"requests_sha256": given.lists, "asked_sha256": asked}
    return {
        "depth": settings.depth,
        **({"first_stage": given.first_stage.value} if given.first_stage else {}),
        **{name: sha256_of_files([path]) for name, path in files.items() if path},
        **({"queries_sha256": dataset.queries_sha256} if dataset else {}),
    }


def _names(requests: Sequence[Path], qrels: Sequence[str], collections: Sequence[str]) -> list[str]:
    """The name of each dataset: its collection's, or else its judgements'.

    Where two have the same, the names of the files of lists or of their folders tell them apart.
    """
    named, stems, folders = list[str](), list[str](), list[str]()
    for path, judged, collection in zip_longest(requests, qrels, collections):
        stems.append(Path(path.name.removesuffix(".gz")).stem)
        folders.append(path.absolute().parent.name)
        path = Path(collection or judged)
        if collection and path.exists():
            named.append(beir.name_of(path))
        else:
            named.append(_judged_name(path) if path.exists() else str(path))
    ways = [
        named,
        *(list(map("-".join, zip(named, *parts, strict=True))) for parts in ((stems,), (folders,), (folders, stems))),
    ]
    return next((names for names in ways if len(set(names)) == len(names)), ways[-1])


def _judged_name(qrels: Path) -> str:
    """The name of what a file judges: the file's or else the nearest folder's that is not a word for judgements."""
    names = [Path(qrels.name.removesuffix(".gz")).stem, *(folder.name for folder in qrels.absolute().parents)]
    return next((name for name in names if name and name.lower() not in _JUDGEMENTS), names[0])


def _select(
    queries: Mapping[str, Query], qrels: Sequence[Qrel], settings: EvaluationSettings
) -> tuple[dict[str, Query], tuple[str, ...]]:
    """The queries that are asked by query_id, in their order, and notes on those that are not.

    A query without text is not asked, and so not measured: a service refuses it, and the first stage's order of its
    candidates would count against systems that never saw it.

    Raises:
        CollectionError: --queries cannot be read, or names none of the queries; or no query has a text.
    """
    asked, notes = dict(queries), list[str]()
    if settings.queries:
        wanted = _read(beir.queries_file(settings.queries))
        asked = {
            query_id: _with_text(query, wanted[query_id]) for query_id, query in queries.items() if query_id in wanted
        }
        if not asked:
            raise CollectionError(
                f"{settings.queries} names none of the {len(queries)} queries; its ids are like "
                f"{next(iter(wanted), '')!r}, theirs like {next(iter(queries), '')!r}"
            )
        if missing := len(wanted) - len(asked):
            notes.append(
                f"{missing} of {len(wanted)} queries of {settings.queries} are not among those with candidates."
            )
    if empty := [query_id for query_id, query in asked.items() if query.is_empty]:
        asked = {query_id: query for query_id, query in asked.items() if not query.is_empty}
        if not asked:
            raise CollectionError(f"none of the {len(empty)} queries has a text; give queries with texts")
        notes.append(f"Queries without text, which are not asked and not measured: {len(empty)} ({listed(empty)}).")
    if settings.limit:
        judged = {qrel.query_id for qrel in qrels}
        asked = dict(islice(((q, query) for q, query in asked.items() if q in judged), settings.limit))
    return asked, tuple(notes)


def _read(path: Path) -> dict[str, str]:
    """Texts by query_id; empty where the file has the id alone."""
    rows = parsed_lines(
        path, lambda line: parse_query(line) if "\t" in line or "{" in line else Query("", line.strip())
    )
    return {query.query_id: query.text for query in distinct(path, rows, lambda query: query.query_id, "query")}


def _with_text(query: Query, text: str) -> Query:
    return replace(query, text=text) if text else query
