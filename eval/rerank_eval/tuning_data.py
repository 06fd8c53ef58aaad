"""Queries and judgements of a user, by which `rerank tune` chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rerank.errors import CollectionError, ConfigError
from rerank.readers.clicks import read_clicks
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.queries import read_queries
from rerank.readers.requests import Request, read_requests
from rerank.retrieval.index import read_manifest
from rerank.types import Candidate, Passage, Query
from rerank.util.files import sha256_of_files
from rerank_eval.datasets import open_dataset
from rerank_eval.overlap import candidate_ids, check_index, check_requests, judgements_of
from rerank_eval.tune_settings import TuneSettings

#: With fewer, a choice is chance, and no gain can be told from 0.
MIN_QUERIES = 20


@dataclass(frozen=True, slots=True)
class TuningData:
    """Judged queries.

    Attributes:
        queries: those that are judged, by query_id.
        requests: their lists by query_id; empty if an index is searched.
        notes: sentences for the reader where queries and judgements cover each other only in part.
        fingerprint: every setting that decides the lists.
    """

    queries: Mapping[str, Query]
    qrels: Sequence[Qrel]
    requests: Mapping[str, Request]
    notes: tuple[str, ...]
    fingerprint: Mapping[str, object]

    def candidates(self, depth: int) -> dict[str, list[Candidate]]:
        """The first candidates of the requests, without texts."""
        lists = {query_id: self.requests[query_id].candidates[:depth] for query_id in self.queries}
        return {q: [Candidate(Passage(each.doc_id, ""), each.score) for each in rows] for q, rows in lists.items()}

    def check_relevant(self, found: Mapping[str, Sequence[Candidate]]) -> None:
        """Raises: CollectionError if too few queries have a relevant passage in what is `found`."""
        relevant = _relevant_by_query(self.qrels)
        with_some = [q for q in relevant if relevant[q] & {each.passage.doc_id for each in found[q]}]
        which = "judged queries with a relevant passage in the list of the first stage"
        _check_number(len(with_some), which, "judge more, or use a larger --depth")


def read_data(settings: TuneSettings) -> TuningData:
    """Reads the queries and judgements that the settings name.

    Raises:
        ConfigError: the settings name none, or several.
        CollectionError: a file cannot be read, too few queries have a relevant passage, or queries, judgements and
            passages share no ids.
        IndexMismatch: there is no index.
    """
    judgements = {"--qrels": settings.qrels, "--clicks": settings.clicks, "--collection": settings.collection}
    _check_sources(settings, judgements)
    asked, qrels = _judged(settings)
    _check_judgements(qrels)  # before the lists are read, which may be large
    requests = {row.query.query_id: row for row in (read_requests(settings.requests) if settings.requests else ())}
    if settings.qrels and requests:  # ids with spaces are told from those with %20 by the ids of the candidates
        qrels = read_qrels(settings.qrels, candidate_ids(list(requests.values())))
    if settings.queries:
        asked = read_queries(settings.queries)
    elif requests:
        asked = [request.query for request in requests.values()]
    source = next(str(given) for given in judgements.values() if given)
    used, notes = judgements_of((query.query_id for query in asked), qrels, source)
    _check_judgements(used)
    judged = {qrel.query_id for qrel in used}
    queries = {query.query_id: query for query in asked if query.query_id in judged}
    fingerprint: dict[str, object] = {"depth": settings.depth, "queries": {q: queries[q].text for q in queries}}
    if settings.index:
        notes += check_index(settings.index, used, source)
        built = read_manifest(settings.index).created_utc.isoformat()
        fingerprint |= {"first_stage": settings.first_stage.value, "index_built": built}
    elif settings.requests:
        notes += check_requests(requests.values(), used, str(settings.requests))
        fingerprint["requests_sha256"] = sha256_of_files([settings.requests])
    return TuningData(queries, used, requests, notes, fingerprint)


def _judged(settings: TuneSettings) -> tuple[Sequence[Query], Sequence[Qrel]]:
    """The judgements, and the queries that come with them: of --collection, or the texts of clicks."""
    if settings.collection:
        dataset = open_dataset(settings.collection)
        return list(dataset.queries.values()), dataset.qrels
    qrels = read_clicks(settings.clicks) if settings.clicks else read_qrels(settings.qrels) if settings.qrels else []
    return [Query(text, text) for text in dict.fromkeys(qrel.query_id for qrel in qrels)], qrels


def _check_judgements(qrels: Iterable[Qrel]) -> None:
    """Raises: CollectionError if too few queries have a relevant passage."""
    relevant = _relevant_by_query(qrels)
    with_some = sum(bool(doc_ids) for doc_ids in relevant.values())
    which = "judged queries" + (" with a relevant passage" if with_some < len(relevant) else "")
    _check_number(with_some, which, "judge more")


def _relevant_by_query(qrels: Iterable[Qrel]) -> dict[str, set[str]]:
    """query_id → doc_ids of its relevant passages; the list may be empty."""
    relevant: dict[str, set[str]] = {}
    for qrel in qrels:
        relevant.setdefault(qrel.query_id, set()).update([qrel.doc_id] if qrel.relevance > 0 else ())
    return relevant


def _check_number(queries: int, which: str, way_out: str) -> None:
    if queries < MIN_QUERIES:
        raise CollectionError(f"You have {queries} {which}; at least {MIN_QUERIES} are needed: {way_out}")


def _check_sources(settings: TuneSettings, judgements: Mapping[str, object]) -> None:
    """Raises: ConfigError unless there is one source of lists, of judgements, and of the texts of queries."""
    _one_of("lists to rerank", {"--index": settings.index, "--requests": settings.requests})
    _one_of("judgements", judgements)
    texts = {"--queries": settings.queries, "--requests": settings.requests, "--collection": settings.collection}
    if any(texts.values()) or not settings.clicks:  # which may have the texts themselves
        _one_of("texts of queries", texts)


def _one_of(what: str, given: Mapping[str, object]) -> None:
    flags = [flag for flag, value in given.items() if value]
    if len(flags) != 1:
        found = f"{' and '.join(flags)} are" if flags else "none of them is"
        raise ConfigError(f"{what} come from one of {', '.join(given)}, but {found} given; give exactly one")
