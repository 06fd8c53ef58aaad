"""The table of the paths that take requests, and of the dialects that each of them reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from rerank.errors import InvalidRequest
from rerank.ports.http.dialects.cohere import CohereDialect, Cut
from rerank.ports.http.dialects.dialect import Dialect
from rerank.ports.http.dialects.native import RerankDialect, SearchDialect
from rerank.ports.http.dialects.rows import NIM, PINECONE, VLLM_SCORES, VOYAGE, WEAVIATE
from rerank.ports.http.dialects.tei import TEIDialect
from rerank.ports.http.problem import Problem

#: Field of a request → the dialect of the requests that have it. A path with one dialect takes all requests in it.
ByField: TypeAlias = Mapping[str, Dialect]
#: Path → its dialects.
Dialects: TypeAlias = Mapping[str, ByField]

SEARCH = "/search"
#: The JSON form of gRPC's Rerank.
NATIVE: ByField = {"candidates": RerankDialect()}


def dialects(cut: Cut) -> Dialects:
    """The dialects by path. All paths but SEARCH rerank the passages of the request.

    Args:
        cut: cuts texts to a number of tokens.
    """
    cohere = CohereDialect(cut, "1")
    return {
        "/v1/rerank": {"top_k": VOYAGE, "documents": cohere},
        "/v2/rerank": {"documents": CohereDialect(cut, "2")},
        "/rerank": {"property": WEAVIATE, "documents": cohere, "texts": TEIDialect(), **NATIVE},
        "/v1/ranking": {"passages": NIM},
        "/v1/score": {"text_2": VLLM_SCORES},
        "/voyage/v1/rerank": {"documents": VOYAGE},
        "/pinecone/rerank": {"documents": PINECONE},
        SEARCH: {"query": SearchDialect()},
    }


def chosen(of_path: ByField, body: Mapping[str, Any]) -> Dialect:
    """The dialect of a body: that of the first field which the body has. Raises: InvalidRequest if it has none."""
    if len(of_path) == 1:
        return next(iter(of_path.values()))
    found = next((dialect for field, dialect in of_path.items() if field in body), None)
    if found is None:
        raise InvalidRequest("body", f"no API has a request like this; send {choices(of_path)}")
    return found


def choices(of_path: ByField) -> str:
    """The contents of requests in words, such as "documents (Cohere, Jina) or texts (TEI)"."""
    *others, last = [dialect.name for dialect in of_path.values()]
    return f"{', '.join(others)} or {last}" if others else last


def error_body(dialects: Iterable[Dialect], problem: Problem) -> dict[str, Any]:
    """The body of an error to a client of one of these APIs, who reads the fields of its own."""
    return {name: value for dialect in dialects for name, value in dialect.error(problem).items()}


def error_in_all(by_path: Dialects, problem: Problem) -> dict[str, Any]:
    """The body of an error to a client whose API is not known: it has the fields of all dialects."""
    return error_body((dialect for of_path in by_path.values() for dialect in of_path.values()), problem)
