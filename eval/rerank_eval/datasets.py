"""Reads the datasets that the flags of an evaluation name: queries with candidates, and judgements."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

from ir_measures import Measure

from rerank.collections import Collection, beir
from rerank.errors import CollectionError, ConfigError
from rerank.readers.candidates import CandidateList, read_requests
from rerank.readers.qrels import Qrel, read_qrels, with_known_ids
from rerank.readers.queries import parse_query
from rerank.readers.rows import distinct, parsed_lines
from rerank.types import Passage, Query
from rerank.util.files import sha256_of_files
from rerank_eval.collections import candidates_of_run, named_qrels, open_collection
from rerank_eval.measures import (
    MetricValues,
    Response,
    Run,
    by_rank,
    least_relevant_grade,
    measure,
    measures_from,
    without_query_documents,
)
from rerank_eval.overlap import (
    check_doc_ids,
    check_index,
    first_ids,
    judgements_of,
    notes_on_empty_lists,
    notes_on_missing_relevance,
)
from rerank_eval.settings import BeirSettings, CommandSettings, EvaluationSettings, TrecDLSettings
from rerank_eval.systems import System

#: Usual names of files and folders of judgements, which cannot be the name of a dataset.
_JUDGEMENTS = {"qrels", "qrel", "judgements", "judgments", "test", "dev", "train"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Queries with their candidates and judgements.

    Attributes:
        title: heading of the report.
        queries: query_id → query, for the queries that are asked.
        lists: query_id → candidates; None: a service searches for them.
        search: fields of the message SearchRequest (rerank.proto) for this search.
        fingerprint: every setting that decides the candidates.
        qrels: all judgements, also of queries that are not asked.
        qrels_sha256: hash of the judgements.
        judged: the judgements of the queries that are measured.
        is_of_collection: whether the queries could be documents of the collection, see `without_query_documents`.
        rel: least grade that RR, AP and R count as relevant.
        notes: notes on queries and candidates without judgements, and on judgements without queries or candidates.
        index: folder of the index for the service that the evaluation starts.
    """

    name: str
    title: str
    queries: Mapping[str, Query]
    lists: Mapping[str, Sequence[Passage]] | None
    search: Mapping[str, object]
    fingerprint: Mapping[str, object]
    qrels: Sequence[Qrel]
    qrels_sha256: str
    judged: Sequence[Qrel]
    is_of_collection: bool
    rel: int
    notes: tuple[str, ...]
    index: Path | None

    def rank(self, system: System, query_id: str) -> Response:
        """A system's ranking of the candidates of a query. Without candidates, the system is not called."""
        query = self.queries[query_id]
        if self.lists is None:
            return system.search(query, **self.search)
        candidates = self.lists[query_id]
        if not candidates:
            return Response(query_id, (), (), (), {}, wall_ms=0.0, ended_at=0.0)
        return system.rerank(query, candidates)

    def first_stage(self, responses: Iterable[Response]) -> Run:
        """The candidates in the order of the first stage.

        Args:
            responses: responses of a system, with the passages that its searches found; not read if `lists` has them.
        """
        if self.lists is not None:
            return {query_id: by_rank(doc.doc_id for doc in docs) for query_id, docs in self.lists.items()}
        return {response.query_id: by_rank(response.first_stage_doc_ids) for response in responses}

    def counted(self, run: Run) -> Run:
        """The part of a run that is measured."""
        return without_query_documents(self.qrels, run) if self.is_of_collection else run

    def measure(self, run: Run, measures: Sequence[Measure] = ()) -> MetricValues:
        """Measures a run, by default with `measures_from(rel)`."""
        return measure(measures or measures_from(self.rel), self.judged, self.counted(run))


def open_datasets(settings: CommandSettings) -> list[Dataset]:
    """Reads all datasets, before the first query runs.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
    """
    if isinstance(settings, BeirSettings):
        _check_indexes(settings)
        given = zip_longest(settings.collection, settings.index)
        return [_open(settings, collection=collection, index=index) for collection, index in given]
    _check_judgements(settings)
    files = (settings.requests, settings.qrels, settings.collection)
    return [
        _open(settings, name=name, lists_file=path, qrels_name=qrels, collection=collection)
        for name, path, qrels, collection in zip_longest(_names(*files), *files)
    ]


def _check_indexes(settings: BeirSettings) -> None:
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


def _check_judgements(settings: TrecDLSettings) -> None:
    lists = len(settings.requests)
    for flag, values in (("--qrels", settings.qrels), ("--collection", settings.collection)):
        if values and len(values) != lists:
            raise ConfigError(
                f"{lists} --requests and {len(values)} {flag}; give one for each --requests, in the same order"
            )
    if not settings.qrels and not settings.collection:
        raise ConfigError("no judgements: give --qrels FILE, or --collection NAME of a collection that has some")


def _open(
    settings: CommandSettings,
    *,
    name: str = "",
    lists_file: Path | None = None,
    qrels_name: str | None = None,
    collection: str | None = None,
    index: Path | None = None,
) -> Dataset:
    """Reads one dataset: the candidates of a file, or the queries for which a service searches a collection.

    Args:
        name: name of the dataset; empty: the collection's.
        lists_file: request file, or run over the collection.
        qrels_name: file or name of the judgements; None: the collection's.
    """
    opened = open_collection(collection) if collection else None
    qrels = opened.qrels(settings.split) if opened else []
    queries = _judged_queries(opened, qrels, str(collection)) if opened else {}
    of_collection = {"queries_sha256": _sha256(sorted((q.query_id, q.text) for q in queries.values()))}
    lists, unjudged = None, list[str]()
    if lists_file:
        requests, unjudged = _requests(lists_file, opened, queries, qrels, settings.depth)
        queries = {request.query.query_id: request.query for request in requests}
        lists = {request.query.query_id: request.candidates for request in requests}
    qrels_sha256 = _sha256(sorted(qrels))
    if qrels_name:
        read, qrels_sha256 = _read_qrels(qrels_name)
        doc_ids = _doc_ids((lists or {}).values())
        qrels = with_known_ids(read, lambda _: queries.keys(), lambda _: doc_ids)
    origin = str(lists_file or collection)
    not_retrieved = [] if lists is None else _queries_without_candidates(lists, qrels, settings)
    queries, notes = _asked_queries(queries, qrels, settings)
    judged, on_judgements = judgements_of([*queries, *unjudged], qrels, origin, not_retrieved)
    notes += on_judgements
    if lists is not None:
        lists = {query_id: lists[query_id] for query_id in queries}
        check_doc_ids(_doc_ids(lists.values()), qrels, f"candidates of {origin}")
        notes += notes_on_empty_lists({**lists, **dict.fromkeys(not_retrieved, ())})
    elif index:
        check_index(index, qrels, origin)
    name = name or (opened.name if opened else "")
    first_stage = settings.first_stage if isinstance(settings, BeirSettings) else None
    rel = least_relevant_grade(qrels, settings.rel)
    depth, searched = settings.depth or "all", first_stage.value if first_stage else Path(origin).name
    return Dataset(
        name=name,
        title=f"{len(queries)} queries of {name}, {searched}, depth {depth}",
        queries=queries,
        lists=lists,
        search={"first_stage": first_stage, "depth": settings.depth},
        fingerprint=_fingerprint(settings, lists_file) | (of_collection if opened else {}),
        qrels=qrels,
        qrels_sha256=qrels_sha256,
        judged=judged,
        is_of_collection=opened is not None,
        rel=rel,
        notes=(*notes, *notes_on_missing_relevance(judged, rel)),
        index=index,
    )


def _judged_queries(collection: Collection, qrels: Sequence[Qrel], source: str) -> dict[str, Query]:
    queries, judged_ids = collection.queries(), {qrel.query_id for qrel in qrels}
    judgements_of((query.query_id for query in queries), qrels, source)  # raises if no query is judged
    return {query.query_id: query for query in queries if query.query_id in judged_ids}


def _requests(
    path: Path, collection: Collection | None, judged: Mapping[str, Query], qrels: Sequence[Qrel], depth: int
) -> tuple[list[CandidateList], list[str]]:
    """The lists of a run or a request file; and for a run, the sorted ids of its queries without judgements."""
    if collection is None:
        lists = read_requests(path)
        return [replace(request, candidates=request.candidates[: depth or None]) for request in lists], []
    lists, query_ids = candidates_of_run(path, collection, judged, depth)
    return lists, sorted(query_ids - {qrel.query_id for qrel in qrels})


def _read_qrels(name: str) -> tuple[list[Qrel], str]:
    """The judgements of a file or of a name that `named_qrels` knows, and their SHA-256.

    Raises:
        CollectionError: the file cannot be read.
        ConfigError: see `named_qrels`.
    """
    path = Path(name)
    if not path.exists() and (named := named_qrels(name)) is not None:
        return named, _sha256(sorted(named))
    return read_qrels(path), sha256_of_files([path])


def _doc_ids(lists: Iterable[Sequence[Passage]]) -> set[str]:
    return {passage.doc_id for candidates in lists for passage in candidates}


def _fingerprint(settings: CommandSettings, lists_file: Path | None) -> dict[str, object]:
    """The flags and files that decide the candidates."""
    asked = beir.queries_file(settings.queries) if settings.queries else None
    files = {"requests_sha256": lists_file, "asked_sha256": asked}
    return {
        "depth": settings.depth,
        **({"first_stage": settings.first_stage.value} if isinstance(settings, BeirSettings) else {}),
        **{name: sha256_of_files([path]) for name, path in files.items() if path},
    }


def _names(requests: Sequence[Path], qrels: Sequence[str], collections: Sequence[str]) -> list[str]:
    """The name of each dataset: the name of its collection, or else of its judgements.

    If two names are equal, the names of the request files or of their folders are appended.
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
    """The dataset's name by its file of judgements: the name of the file, or of the nearest folder, that is not in
    _JUDGEMENTS."""
    names = [Path(qrels.name.removesuffix(".gz")).stem, *(folder.name for folder in qrels.absolute().parents)]
    return next((name for name in names if name and name.lower() not in _JUDGEMENTS), names[0])


def _asked_queries(
    queries: Mapping[str, Query], qrels: Sequence[Qrel], settings: EvaluationSettings
) -> tuple[dict[str, Query], tuple[str, ...]]:
    """query_id → query that is asked, in their order; and notes on the queries that are not asked.

    A query without text is not asked, and so not measured: a service refuses it, and the first stage's order of its
    candidates would count against systems that never saw it.

    Raises:
        CollectionError: --queries cannot be read, or names none of the queries; or no query has a text.
    """
    asked, notes = dict(queries), list[str]()
    if settings.queries:
        wanted = _read_texts(beir.queries_file(settings.queries))
        asked = {
            query_id: replace(query, text=wanted[query_id] or query.text)
            for query_id, query in queries.items()
            if query_id in wanted
        }
        if not asked:
            raise CollectionError(
                f"{settings.queries} names none of the {len(queries)} queries; its ids are like "
                f"{next(iter(wanted), '')!r}, the ids of the queries like {next(iter(queries), '')!r}"
            )
        if missing := len(wanted) - len(asked):
            notes.append(
                f"{missing} of {len(wanted)} queries of {settings.queries} are not among those with candidates."
            )
    if empty := [query_id for query_id, query in asked.items() if query.is_empty]:
        asked = {query_id: query for query_id, query in asked.items() if not query.is_empty}
        if not asked:
            raise CollectionError(f"none of the {len(empty)} queries has a text; give queries with texts")
        notes.append(f"Queries without text, which are not asked and not measured: {len(empty)} ({first_ids(empty)}).")
    if settings.limit:
        judged = {qrel.query_id for qrel in qrels}
        asked = dict(islice(((q, query) for q, query in asked.items() if q in judged), settings.limit))
    return asked, tuple(notes)


def _queries_without_candidates(
    lists: Mapping[str, Sequence[Passage]], qrels: Sequence[Qrel], settings: EvaluationSettings
) -> list[str]:
    """The judged queries without candidates in the file, if --queries allows them. Empty with --limit.

    They count as 0, as in `trec_eval -c`: a TREC run cannot name a query without results.
    """
    if settings.limit:
        return []
    named = _read_texts(beir.queries_file(settings.queries)) if settings.queries else None
    judged = dict.fromkeys(qrel.query_id for qrel in qrels)
    return [query_id for query_id in judged if query_id not in lists and (named is None or query_id in named)]


def _read_texts(path: Path) -> dict[str, str]:
    """query_id → text; the text is empty if the file has only the id."""
    rows = parsed_lines(
        path, lambda line: parse_query(line) if "\t" in line or "{" in line else Query("", line.strip())
    )
    return {query.query_id: query.text for query in distinct(path, rows, lambda query: query.query_id, "query")}


def _sha256(rows: object) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()
