"""Where queries and passages come from: request files, collections, questions with answers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from rerank.collections import beir
from rerank.collections.requests import Qrel, Request
from rerank.errors import CollectionError
from rerank.types import Candidate, Passage, Query
from rerank_training.data import Grades, grades_of, request_passages
from rerank_training.neighbours import Asked, Encode
from rerank_training.pseudo_queries import Span, beginning, cut, first_words, sentence, without
from rerank_training.sampling import Pool, make_pool


class QueryKind(StrEnum):
    """Where the queries to a collection come from."""

    TITLES = "titles"
    SENTENCES = "sentences"
    FIRST_WORDS = "first-words"
    FILE = "file"


def read_medquad(path: Path, name: str, words: int) -> tuple[list[Asked], list[Passage]]:
    """Questions and their answers, JSONL or gzip: {"_id", "question", "answer"}.

    Args:
        name: begins the query_ids.
        words: how many words of an answer make the passage; 0: all.

    Raises:
        CollectionError: the file or a line of it cannot be read; the message names the line.
    """
    rows = list(_medquad_rows(path))
    passages = _not_empty(Passage(row["_id"], cut(row["answer"], words)) for row in rows)
    return [Asked(Query(row["question"], f"{name}/{row['_id']}"), {row["_id"]: 1.0}) for row in rows], passages


def read_collection(folder: Path, words: int) -> list[Passage]:
    """The passages of a BEIR folder that are not empty, cut to their first words (0: not). Raises: CollectionError."""
    return _not_empty(replace(passage, text=cut(passage.text, words)) for passage in beir.passages(folder))


def read_titles(folder: Path) -> dict[str, str]:
    """doc_id → title, of a BEIR folder that `read_collection` has read."""
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line.strip()]
    return {str(row["_id"]): str(row.get("title") or "") for row in rows}


def judged_queries(queries: Iterable[Query], qrels: Iterable[Qrel], name: str) -> list[Asked]:
    """The queries that somebody judged."""
    grades = grades_of(qrels)
    return [
        Asked(replace(query, query_id=f"{name}/{query.query_id}"), grades[query.query_id])
        for query in queries
        if query.query_id in grades
    ]


def pseudo_queries(
    passages: Sequence[Passage], kind: QueryKind, titles: Mapping[str, str], remove_share: float, seed: int, name: str
) -> list[Asked]:
    """One query for every passage that has a part of the kind.

    Args:
        remove_share: in how many of the passages the part is taken out, where enough is left.
        name: begins the query_ids, which go on with doc_id and kind ("cranfield/184/sentences-removed").
    """
    asked = []
    for passage in passages:
        random = Random(f"{seed}:{passage.doc_id}")
        if span := _part(passage, kind, titles, random):
            rest = without(passage.text, span) if random.random() < remove_share else None
            query_id = f"{name}/{passage.doc_id}/{kind}{'-removed' if rest else ''}"
            replaced = Passage(passage.doc_id, rest) if rest else None
            asked.append(Asked(Query(span.of(passage.text), query_id), {passage.doc_id: 1.0}, replaced))
    return asked


def request_texts(requests: Iterable[Request], words: int) -> list[Passage]:
    """Every candidate once that is not empty, cut to its first words (0: not)."""
    first = {passage.doc_id: passage for request in requests for passage in request_passages(request)}
    return _not_empty(replace(passage, text=cut(passage.text, words)) for passage in first.values())


def request_pools(
    requests: Sequence[Request],
    passages: Iterable[Passage],
    grades: Grades,
    depth: int,
    encode: Encode | None,
    name: str,
) -> Iterator[Pool]:
    """For each request its first `depth` candidates.

    Args:
        passages: what `request_texts` gave, with vectors where `encode` gives the queries theirs.
    """
    known = {passage.doc_id: passage for passage in passages}
    for request in requests:
        found = [c for c in request.candidates[:depth] if c.doc_id in known]
        query = replace(request.query, query_id=f"{name}/{request.query.query_id}")
        if encode:
            query = replace(query, vector=encode([query.text])[0])
        candidates = [Candidate(known[c.doc_id], c.score) for c in found]
        yield make_pool(query, candidates, grades.get(request.query.query_id, {}))


def _part(passage: Passage, kind: QueryKind, titles: Mapping[str, str], random: Random) -> Span | None:
    match kind:
        case QueryKind.TITLES:
            return beginning(passage.text, titles.get(passage.doc_id, ""))
        case QueryKind.SENTENCES:
            return sentence(passage.text, random)
        case QueryKind.FIRST_WORDS:
            return first_words(passage.text, random)
        case QueryKind.FILE:
            raise RuntimeError("queries of a file are no part of a passage; this is a bug")


def _not_empty(passages: Iterable[Passage]) -> list[Passage]:
    return [passage for passage in passages if passage.text.strip()]


def _medquad_rows(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            lines = list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise CollectionError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            yield {field: str(row[field]) for field in ("_id", "question", "answer")}
        except (ValueError, KeyError, TypeError) as error:
            raise CollectionError(f"{path}:{number}: expected _id, question and answer ({error!r})") from error
