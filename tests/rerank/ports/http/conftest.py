"""A service with gRPC and HTTP over fake rankers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rerank.config import HttpConfig
from rerank.rankers.identity import IdentityRanker
from tests.fakes import NumberRanker

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder
    from rerank.retrieval.index import Index
    from tests.http_client import HttpClient


@pytest.fixture(scope="session")
def http(encoder: Encoder, index: Index) -> Iterator[HttpClient]:
    """A service over `index` with the models number (the default; "vendor-model" is its alias) and identity."""
    from tests.http_client import http_service

    rankers = {"number": NumberRanker(), "identity": IdentityRanker()}
    settings = HttpConfig(listen="127.0.0.1:0", model_aliases={"vendor-model": "number"})
    with http_service(encoder, rankers, index, http=settings) as (_, client):
        yield client
