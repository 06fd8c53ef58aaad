"""The table of the paths that take requests, and of the APIs that each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from rerank.ports.http.apis.api import ByField, error_body
from rerank.ports.http.apis.cohere import CohereAPI, Cut
from rerank.ports.http.apis.field_maps import NIM, PINECONE, VLLM_SCORES, VOYAGE, WEAVIATE
from rerank.ports.http.apis.native import NativeRerank, NativeSearch
from rerank.ports.http.apis.tei import TEIAPI
from rerank.ports.http.problem import Problem

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
        "/score": {"text_2": VLLM_SCORES},
        "/voyage/v1/rerank": {"documents": VOYAGE},
        "/pinecone/rerank": {"documents": PINECONE},
        SEARCH: {"query": NativeSearch()},
    }


def error_in_all(by_path: APIs, problem: Problem) -> dict[str, Any]:
    """The body of an error to a client whose API is not known: it has the fields of all APIs."""
    return error_body((api for apis in by_path.values() for api in apis.values()), problem)
