"""Running services with the same models, among which an evaluation spreads its queries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from rerank.access.credentials import PLAIN, Credentials
from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.client.retries import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT_S
from rerank.errors import ConfigError
from rerank.types import CandidateLike
from rerank.v1 import rerank_pb2 as pb

T = TypeVar("T")

#: Seconds in which a service that did not answer gets a query only if no other one answers.
_REST_S = 10.0
#: What a service answers when another one could have room.
_OTHERS_MAY_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class Services:
    """A client of several services: a query goes to the service with the fewest queries in flight.

    A query that a service does not answer, or is too busy for, goes to the other ones; when none of them answers, one
    is asked again as `rerank.client.retries` says. Methods may be called from several threads.

    Args:
        targets: HOST:PORT of each service, at least one.

    Raises:
        ConfigError: a target has no port, or a file of the credentials cannot be read.
    """

    def __init__(self, targets: Sequence[str], credentials: Credentials = PLAIN) -> None:
        self._lock = threading.Lock()
        self._services = [_Service(target, credentials) for target in targets]

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        for service in self._services:
            service.client.close()
            service.hasty_client.close()

    def list_models(self) -> pb.ListModelsResponse:
        """The models and the index, which must be the same in all services.

        Raises:
            ConfigError: two services differ.
            ServiceError: a service does not answer.
        """
        first, *others = self._services
        listed = first.client.list_models()
        for other in others:
            found = other.client.list_models()
            if found != listed:
                raise ConfigError(
                    f"{first.target} and {other.target} differ in {_difference(listed, found)}, so that results would "
                    "depend on which of them answers; give services with the same configuration, or one --target only"
                )
        return listed

    def rerank(
        self,
        query: str,
        candidates: Sequence[pb.Candidate | CandidateLike],
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **options: Any,
    ) -> pb.RerankResponse:
        """See RerankClient.rerank."""
        return self._call(lambda client: client.rerank(query, candidates, timeout_s, **options))

    def search(self, query: str, timeout_s: float = DEFAULT_TIMEOUT_S, **options: Any) -> pb.SearchResponse:
        """See RerankClient.search."""
        return self._call(lambda client: client.search(query, timeout_s, **options))

    def _call(self, call: Callable[[RerankClient], T]) -> T:
        """Asks each service once, and then the best of them until its client gives up. Raises: ServiceError."""
        asked: list[_Service] = []
        while len(self._services) > 1 and len(asked) < len(self._services):
            with self._lease(asked) as service:
                asked.append(service)
                try:
                    return call(service.hasty_client)
                except ServiceError as error:
                    if error.code not in _OTHERS_MAY_ANSWER:
                        raise
                    if error.code is grpc.StatusCode.UNAVAILABLE:
                        service.rests_until_s = time.monotonic() + _REST_S
        with self._lease() as service:
            return call(service.client)

    @contextmanager
    def _lease(self, asked: Sequence[_Service] = ()) -> Iterator[_Service]:
        """The least busy of the services that were not asked yet, with one query more in flight."""
        with self._lock:
            now_s = time.monotonic()
            service = min((one for one in self._services if one not in asked), key=lambda one: one.load(now_s))
            service.in_flight += 1
            service.sent += 1
        try:
            yield service
        finally:
            with self._lock:
                service.in_flight -= 1


class _Service:
    """One service, with its queries in flight and those that it was sent in all; `hasty_client` asks only once."""

    def __init__(self, target: str, credentials: Credentials) -> None:
        self.target = target
        self.client = RerankClient(target, credentials, DEFAULT_ATTEMPTS)
        self.hasty_client = RerankClient(target, credentials, attempts=1)
        self.in_flight = self.sent = 0
        self.rests_until_s = 0.0

    def load(self, now_s: float) -> tuple[bool, int, int]:
        """Grows with the reasons to ask another one."""
        return self.rests_until_s > now_s, self.in_flight, self.sent


def _difference(first: pb.ListModelsResponse, second: pb.ListModelsResponse) -> str:
    """Names of the models that differ between two services, or "the index" or "the order of the models"."""
    models = [{model.name: model for model in listed.models} for listed in (first, second)]
    names = sorted(name for name in models[0].keys() | models[1].keys() if models[0].get(name) != models[1].get(name))
    if names:
        return f"model {', '.join(map(repr, names))}"
    return "the index" if first.index != second.index else "the order of the models"
