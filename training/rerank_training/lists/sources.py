"""Sources of queries and passages for training lists: request files, collections, and questions with answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rerank.collections import beir
from rerank.readers.lines import parsed_lines
from rerank.readers.qrels import Qrel, grades_by_query
from rerank.readers.requests import Request
from rerank.readers.rows import id_of, json_object, text_of
from rerank.types import Candidate, Passage, Query
from rerank_training.lists.encoding import Encode
from rerank_training.lists.files import Grades, request_passages
from rerank_training.lists.neighbours import CollectionQuery
from rerank_training.lists.pseudo_queries import remove, sentence, truncate_words
from rerank_training.lists.sampling import Pool, make_pool


def read_medquad(path: Path, name: str, words: int) -> tuple[list[CollectionQuery], list[Passage]]:
    """Reads questions with answers from JSONL or gzipped JSONL: {"_id", "question", "answer"}.

    Args:
        name: prefix of the query_ids.
        words: number of words to which an answer is truncated; 0: no truncation.

    Raises:
        CollectionError: the file or one of its lines cannot be read; the message names the line.
    """
    rows = [row for _, row in parsed_lines(path, _medquad_row)]
    passages = _non_empty(Passage(row["_id"], truncate_words(row["answer"], words)) for row in rows)
    queries = [CollectionQuery(Query(row["question"], f"{name}/{row['_id']}"), {row["_id"]: 1.0}) for row in rows]
    return queries, passages


def read_collection(folder: Path, words: int) -> list[Passage]:
    """The non-empty passages of a BEIR folder, truncated to `words` words (0: not). Raises: CollectionError."""
    passages = beir.passages(folder)
    return _non_empty(replace(passage, text=truncate_words(passage.text, words)) for passage in passages)


def judged_queries(queries: Iterable[Query], qrels: Iterable[Qrel], name: str) -> list[CollectionQuery]:
    """The queries that have judgements, with `name` as prefix of their query_ids."""
    grades = grades_by_query(qrels)
    return [
        CollectionQuery(replace(query, query_id=f"{name}/{query.query_id}"), grades[query.query_id])
        for query in queries
        if query.query_id in grades
    ]


def pseudo_queries(passages: Sequence[Passage], remove_share: float, seed: int, name: str) -> list[CollectionQuery]:
    """One query for each passage that has a sentence to serve as one.

    Args:
        remove_share: share of the passages from which the query is removed, unless too little would be left.
        name: prefix of the query_ids, which continue with the doc_id ("cranfield/184/sentences-removed").
    """
    queries = []
    for passage in passages:
        random = Random(f"{seed}:{passage.doc_id}")
        if text := sentence(passage.text, random):
            remaining = remove(passage.text, text) if random.random() < remove_share else None
            query_id = f"{name}/{passage.doc_id}/sentences{'-removed' if remaining else ''}"
            replacement = Passage(passage.doc_id, remaining) if remaining else None
            queries.append(CollectionQuery(Query(text, query_id), {passage.doc_id: 1.0}, replacement))
    return queries


def request_collection(requests: Iterable[Request], words: int) -> list[Passage]:
    """All distinct, non-empty candidates of the requests, truncated to `words` words (0: not)."""
    by_id = {passage.doc_id: passage for request in requests for passage in request_passages(request)}
    return _non_empty(replace(passage, text=truncate_words(passage.text, words)) for passage in by_id.values())


def request_pools(
    requests: Sequence[Request],
    passages: Iterable[Passage],
    grades: Grades,
    depth: int,
    encode: Encode | None,
    name: str,
) -> Iterator[Pool]:
    """For each request, its first `depth` candidates.

    Args:
        passages: the result of `request_collection`, with vectors if `encode` is given.
        encode: computes the vectors of the queries; None: they get none.
        name: prefix of the query_ids.
    """
    by_id = {passage.doc_id: passage for passage in passages}
    for request in requests:
        found = [c for c in request.candidates[:depth] if c.doc_id in by_id]
        query = replace(request.query, query_id=f"{name}/{request.query.query_id}")
        if encode:
            query = replace(query, vector=encode([query.text])[0])
        candidates = [Candidate(by_id[c.doc_id], c.score) for c in found]
        yield make_pool(query, candidates, grades.get(request.query.query_id, {}))


def _non_empty(passages: Iterable[Passage]) -> list[Passage]:
    return [passage for passage in passages if passage.text.strip()]


def _medquad_row(line: str) -> dict[str, str]:
    row = json_object(line)
    return {"_id": id_of(row, ["_id"])} | {field: text_of(row, field) for field in ("question", "answer")}
