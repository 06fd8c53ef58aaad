"""Services with an HTTP port for tests, and a client of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from rerank.config import HttpConfig
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.reranker import AsyncReranker
from rerank.retrieval.index import Index
from tests.serving import TIMEOUT_S, Served, reranker_of, serving


@dataclass(frozen=True)
class Reply:
    """An HTTP response with its JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class HttpClient:
    """A client of the HTTP port of a service, with a connection per request."""

    address: str

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        with closing(HTTPConnection(*self.host_and_port, timeout=TIMEOUT_S)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, lower, response.read())

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, document: object, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", path, json.dumps(document).encode(), {"content-type": "application/json", **named})


@contextmanager
def serving_http(reranker: AsyncReranker) -> Iterator[tuple[Served, HttpClient]]:
    """Serves gRPC and HTTP until the block ends. The configuration of the reranker must have settings of HTTP."""
    with serving(reranker) as served:
        yield served, HttpClient(served.server.http_address)


@contextmanager
def http_service(
    encoder: Encoder, rankers: Mapping[str, Ranker] | None = None, index: Index | None = None, **settings: Any
) -> Iterator[tuple[Served, HttpClient]]:
    """Serves gRPC and HTTP over these rankers until the block ends; by default over "identity"."""
    http = HttpConfig(listen="127.0.0.1:0")
    with serving_http(
        reranker_of(encoder, rankers or {"identity": IdentityRanker()}, index, **{"http": http} | settings)
    ) as service:
        yield service


def texts(*numbers: float) -> list[str]:
    """Texts whose relevance is the number in them."""
    return [f"relevance {number}" for number in numbers]
