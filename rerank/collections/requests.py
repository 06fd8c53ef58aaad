"""Readers of RankLLM request files, and of the queries and relevance judgements of TREC and BEIR."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rerank.errors import CollectionError
from rerank.types import CandidateSource, Query

T = TypeVar("T")

#: Names of the text field in the documents of different indexes, in RankLLM's order of preference.
_TEXT_FIELDS = ("text", "segment", "contents", "content", "body", "passage")


class Qrel(NamedTuple):
    """One relevance judgement."""

    query_id: str
    doc_id: str
    relevance: int


@dataclass(frozen=True, slots=True)
class Request:
    """A query and its candidates in first-stage order."""

    query: Query
    candidates: tuple[CandidateSource, ...]


def read_requests(path: Path) -> list[Request]:
    """Reads RankLLM's JSONL: {"query": {"text", "qid"}, "candidates": [{"docid", "score", "doc": {…}}]}.

    Raises:
        CollectionError: the file or a line of it cannot be read; the message names the line.
    """
    return list(_rows(path, lambda line: parse_request(json.loads(line))))


def read_beir_queries(folder: Path) -> list[Query]:
    """Reads queries.jsonl of a BEIR folder: {"_id", "text"}. Raises as `read_requests` does."""
    return list(_rows(folder / "queries.jsonl", lambda line: _query(json.loads(line))))


def read_queries(path: Path) -> list[Query]:
    """Reads queries in TREC's form: lines of query_id, tab, text. Raises as `read_requests` does."""
    return list(_rows(path, _tab_separated_query))


def read_trec_qrels(path: Path) -> list[Qrel]:
    """Reads TREC qrels: lines of query_id, an unused column, doc_id, relevance. Raises as `read_requests` does."""
    return list(_rows(path, _trec_qrel))


def read_beir_qrels(folder: Path, split: str = "test") -> list[Qrel]:
    """Reads qrels/SPLIT.tsv of a BEIR folder: a header, then query_id, doc_id, relevance by tabs.

    Raises as `read_requests` does.
    """
    return list(_rows(folder / "qrels" / f"{split}.tsv", _beir_qrel, header_lines=1))


def parse_request(row: Any) -> Request:
    """One parsed line of a request file. Raises: KeyError, TypeError or ValueError when it has another form."""
    candidates = tuple(
        CandidateSource(str(c["docid"]), text=_text(c["doc"]), score=float(c["score"]), title=_title(c["doc"]))
        for c in row["candidates"]
    )
    return Request(Query(row["query"]["text"], query_id=str(row["query"]["qid"])), candidates)


def _text(doc: Any) -> str:
    if isinstance(doc, str):
        return doc
    text = next((doc[field] for field in _TEXT_FIELDS if field in doc), None)
    if text is None:
        raise KeyError(f"the document has the fields {sorted(doc)}, but none of {', '.join(_TEXT_FIELDS)}")
    return f"{_title(doc)} {text}" if _title(doc) else str(text)


def _title(doc: Any) -> str:
    return "" if isinstance(doc, str) else str(doc.get("title") or "")


def _query(row: Any) -> Query:
    return Query(row["text"], query_id=str(row["_id"]))


def _tab_separated_query(line: str) -> Query:
    query_id, text = line.rstrip("\r").split("\t")
    return Query(text, query_id=query_id)


def _trec_qrel(line: str) -> Qrel:
    query_id, _, doc_id, relevance = line.split()
    return Qrel(query_id, doc_id, int(relevance))


def _beir_qrel(line: str) -> Qrel:
    query_id, doc_id, relevance = line.split("\t")
    return Qrel(query_id, doc_id, int(relevance))


def _rows(path: Path, parse: Callable[[str], T], header_lines: int = 0) -> Iterator[T]:
    try:
        lines = path.read_text(encoding="utf-8").split(
            "\n"
        )  # splitlines() would also split at U+2028 inside a JSON string
    except (OSError, UnicodeDecodeError) as error:
        raise CollectionError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip() and number > header_lines:
            try:
                yield parse(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CollectionError(
                    f"{path}:{number}: the line does not have the expected form ({error!r})"
                ) from error
