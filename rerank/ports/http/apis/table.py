"""The table of the paths that take requests, and of the APIs that each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from rerank.ports.http.apis import native
from rerank.ports.http.apis.api import ByField, error_body
from rerank.ports.http.apis.services import (
    NIMAPI,
    TEIAPI,
    CohereAPI,
    PineconeAPI,
    TextCutter,
    VllmScoresAPI,
    VoyageAPI,
    WeaviateAPI,
)
from rerank.ports.http.problem import Problem

#: Path → its APIs.
APIs: TypeAlias = Mapping[str, ByField]

#: The path of searches in the index.
SEARCH = "/search"
#: The JSON form of gRPC's Rerank.
NATIVE: ByField = {"candidates": native.RERANK}


def rerank_apis(cut: TextCutter) -> APIs:
    """Returns path → its APIs. All paths but SEARCH rerank the passages of the request.

    Args:
        cut: cuts texts to a number of tokens.
    """
    cohere, voyage = CohereAPI(cut, "1"), VoyageAPI()
    return {
        "/v1/rerank": {"top_k": voyage, "documents": cohere},
        "/v2/rerank": {"documents": CohereAPI(cut, "2")},
        "/rerank": {"property": WeaviateAPI(), "documents": cohere, "texts": TEIAPI(), **NATIVE},
        "/v1/ranking": {"passages": NIMAPI()},
        "/v1/score": {"text_2": VllmScoresAPI()},
        "/score": {"text_2": VllmScoresAPI()},
        "/voyage/v1/rerank": {"documents": voyage},
        "/pinecone/rerank": {"documents": PineconeAPI()},
        SEARCH: {"query": native.SEARCH},
    }


def error_in_all(by_path: APIs, problem: Problem) -> dict[str, Any]:
    """Returns the body of an error for a client whose API is not known. It has the fields of all APIs."""
    return error_body((api for apis in by_path.values() for api in apis.values()), problem)
