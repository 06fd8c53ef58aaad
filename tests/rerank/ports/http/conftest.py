"""A service with gRPC and HTTP over fake rankers."""

from collections.abc import Iterator

import pytest

from rerank.rankers.identity import IdentityRanker
from rerank.retrieval.index import Index
from tests.fakes import NumberRanker
from tests.http_client import HttpClient
from tests.serving import HTTP, http_service


@pytest.fixture(scope="session")
def http(index: Index) -> Iterator[HttpClient]:
    """A service over `index` with the models number (the default; "vendor-model" is its alias) and identity."""
    settings = HTTP | {"model_aliases": {"vendor-model": "number"}}
    with http_service({"number": NumberRanker(), "identity": IdentityRanker()}, index, http=settings) as served:
        yield served.http
