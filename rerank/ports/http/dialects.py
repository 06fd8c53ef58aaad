"""The dialects of each path that takes requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rerank.ports.http.cohere import CohereDialect, Cut, DocumentsRequestOrAll
from rerank.ports.http.dialect import Dialect, error_body
from rerank.ports.http.native import RerankDialect, SearchDialect
from rerank.ports.http.problem import Problem
from rerank.ports.http.tei import TEIDialect

#: Path → the dialects of its requests. If there are several, the passages of a request say which one it is in.
Dialects: TypeAlias = Mapping[str, Sequence[Dialect]]

RERANK, SEARCH = "/rerank", "/search"

#: The JSON form of gRPC's Rerank.
NATIVE = RerankDialect()


def error_in_all(by_path: Dialects, problem: Problem) -> dict[str, Any]:
    """The body of an error to a client whose API is not known: the fields of all dialects."""
    return error_body((each for of_path in by_path.values() for each in of_path), problem)


def dialects(cut: Cut) -> Dialects:
    """The dialects by path. All paths but SEARCH rerank the passages of the request.

    Args:
        cut: cuts texts to a number of tokens.
    """
    return {
        "/v1/rerank": [CohereDialect(cut, "1")],
        "/v2/rerank": [CohereDialect(cut, "2")],
        RERANK: [
            CohereDialect(cut, "1", DocumentsRequestOrAll),
            TEIDialect(),
            NATIVE,
        ],
        SEARCH: [SearchDialect()],
    }
