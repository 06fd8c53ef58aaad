"""Candidates that no index of ours finds: those of a TREC run, or of an index that Pyserini offers by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ir_measures

from rerank.collections.requests import parse_request
from rerank.errors import CollectionError, ConfigError
from rerank.retrieval.bm25 import K1, B
from rerank.retrieval.jvm import pyserini_module
from rerank.types import CandidateSource, Query
from rerank_eval.data import Request
from rerank_eval.datasets import Dataset


def candidates_of_run(path: Path, dataset: Dataset, depth: int = 0) -> list[Request]:
    """The first `depth` (0: all) of each judged query's passages in a TREC run, with their texts.

    By score, equal ones by falling doc_id: the order in which trec_eval reads it, whatever its ranks say.

    Raises:
        CollectionError: the file is no TREC run, has none of the queries, or a passage that the collection lacks.
    """
    found = _read_run(path)
    kept = {
        query_id: sorted(found[query_id].items(), key=lambda doc: (doc[1], doc[0]), reverse=True)[: depth or None]
        for query_id in dataset.queries
        if query_id in found
    }
    if not kept:
        raise CollectionError(f"{path} answers none of the {len(dataset.queries)} judged queries of {dataset.name}")
    texts = dataset.texts({doc_id for docs in kept.values() for doc_id, _ in docs})
    return [_request(dataset.queries[query_id], docs, texts) for query_id, docs in kept.items()]


def candidates_of_prebuilt(name: str, dataset: Dataset, depth: int) -> list[Request]:
    """What BM25 finds for each judged query in a prebuilt index of Pyserini, which is downloaded once.

    Raises:
        ConfigError: Pyserini has no such index, or it could not be fetched.
        CollectionError: the index does not hold the text of its passages.
    """
    searcher = _prebuilt(name)
    searcher.set_bm25(K1, B)
    return [_searched(searcher, name, query, depth) for query in dataset.queries.values()]


def _read_run(path: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    try:
        with path.open(encoding="utf-8") as file:
            for doc in ir_measures.read_trec_run(file):
                found.setdefault(doc.query_id, {})[doc.doc_id] = doc.score
    except OSError as error:
        raise CollectionError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise CollectionError(f"{path}: expected lines of query_id Q0 doc_id rank score tag ({error})") from error
    return found


def _request(query: Query, docs: Sequence[tuple[str, float]], texts: Mapping[str, str]) -> Request:
    return Request(query, tuple(CandidateSource(doc_id, text=texts[doc_id], score=score) for doc_id, score in docs))


def _prebuilt(name: str) -> Any:
    try:
        searcher = pyserini_module("pyserini.search.lucene").LuceneSearcher.from_prebuilt_index(name)
    except OSError as error:
        raise ConfigError(f"Pyserini's index {name!r} could not be fetched, which needs a network: {error}") from error
    if searcher is None:
        raise ConfigError(f"Pyserini has no prebuilt index {name!r}; pyserini/prebuilt_index_info.py lists them")
    return searcher


def _searched(searcher: Any, index: str, query: Query, depth: int) -> Request:
    candidates = [
        {"docid": hit.docid, "score": hit.score, "doc": _stored(searcher, index, hit.docid)}
        for hit in searcher.search(query.text, k=depth)
    ]
    try:
        return parse_request({"query": {"text": query.text, "qid": query.query_id}, "candidates": candidates})
    except KeyError as error:
        raise CollectionError(f"Pyserini's index {index} holds no text of its passages ({error})") from error


def _stored(searcher: Any, index: str, doc_id: str) -> Any:
    """What was indexed: JSON with the text in one of its fields, or the text itself."""
    raw = searcher.doc(doc_id).raw()
    if raw is None:
        raise CollectionError(f"Pyserini's index {index} holds no text of its passages; use one that stores them")
    try:
        return json.loads(raw)
    except ValueError:
        return raw
