"""A service with gRPC and HTTP over fake rankers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rerank.rankers.identity import IdentityRanker
from tests.fakes import NumberRanker

if TYPE_CHECKING:
    from rerank.retrieval.index import Index
    from tests.http_client import HttpClient


@pytest.fixture(scope="session")
def http(index: Index) -> Iterator[HttpClient]:
    """A service over `index` with the models number (the default; "vendor-model" is its alias) and identity."""
    from tests.serving import HTTP, http_service  # here, because tests in this folder run without torch

    settings = HTTP | {"model_aliases": {"vendor-model": "number"}}
    with http_service({"number": NumberRanker(), "identity": IdentityRanker()}, index, http=settings) as served:
        yield served.http
