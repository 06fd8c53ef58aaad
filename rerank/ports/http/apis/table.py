"""The table of the paths that take requests, and of the APIs that each of them reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from rerank.errors import InvalidRequest
from rerank.ports.http.apis.api import RerankAPI
from rerank.ports.http.apis.cohere import CohereAPI, Cut
from rerank.ports.http.apis.field_maps import NIM, PINECONE, VLLM_SCORES, VOYAGE, WEAVIATE
from rerank.ports.http.apis.native import NativeRerank, NativeSearch
from rerank.ports.http.apis.tei import TEIAPI
from rerank.ports.http.problem import Problem

#: Field of a request → the API of the requests that have it. A path with one API reads all requests as this API's.
ByField: TypeAlias = Mapping[str, RerankAPI]
#: Path → its APIs.
APIs: TypeAlias = Mapping[str, ByField]

SEARCH = "/search"
#: The JSON form of gRPC's Rerank.
NATIVE: ByField = {"candidates": NativeRerank()}


def rerank_apis(cut: Cut) -> APIs:
    """The APIs by path. All paths but SEARCH rerank the passages of the request.

    Args:
        cut: cuts texts to a number of tokens.
    """
    cohere = CohereAPI(cut, "1")
    return {
        "/v1/rerank": {"top_k": VOYAGE, "documents": cohere},
        "/v2/rerank": {"documents": CohereAPI(cut, "2")},
        "/rerank": {"property": WEAVIATE, "documents": cohere, "texts": TEIAPI(), **NATIVE},
        "/v1/ranking": {"passages": NIM},
        "/v1/score": {"text_2": VLLM_SCORES},
        "/voyage/v1/rerank": {"documents": VOYAGE},
        "/pinecone/rerank": {"documents": PINECONE},
        SEARCH: {"query": NativeSearch()},
    }


def chosen(of_path: ByField, body: Mapping[str, Any]) -> RerankAPI:
    """The API of a body, by the first field that the body has. Raises: InvalidRequest if it has none."""
    if len(of_path) == 1:
        return next(iter(of_path.values()))
    found = next((api for field, api in of_path.items() if field in body), None)
    if found is None:
        raise InvalidRequest("body", f"no API has a request like this; send {choices(of_path)}")
    return found


def choices(of_path: ByField) -> str:
    """The contents of requests in words, such as "documents (Cohere, Jina) or texts (TEI)"."""
    *others, last = [api.name for api in of_path.values()]
    return f"{', '.join(others)} or {last}" if others else last


def error_body(apis: Iterable[RerankAPI], problem: Problem) -> dict[str, Any]:
    """The body of an error with the fields of each of these APIs; a client reads the fields of the one it speaks."""
    return {name: value for api in apis for name, value in api.error(problem).items()}


def error_in_all(by_path: APIs, problem: Problem) -> dict[str, Any]:
    """The body of an error to a client whose API is not known: it has the fields of all APIs."""
    return error_body((api for of_path in by_path.values() for api in of_path.values()), problem)
