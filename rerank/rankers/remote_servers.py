"""Connects rankers to the server that ranks their windows, and reads the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from rerank.config.served import Servers
from rerank.errors import ModelServerUnfit
from rerank.inference_servers.server import Server, client_of
from rerank.inference_servers.watched import WatchedServer

T = TypeVar("T")


class RemoteServers(ABC):
    """Holds the servers of a ranker; see `rerank.rankers.base.RemoteRanker`.

    Args:
        name: of the model in the configuration.
        servers: their settings.
        api_key: sent to the servers; empty: none.
        health: path that answers GET if a server is ready; empty: there is none.
    """

    def __init__(self, name: str, servers: Servers, api_key: str, health: str = "/health") -> None:
        self.max_in_flight = servers.max_in_flight
        self._client = client_of(api_key)
        self._server = WatchedServer(name, Server(servers.url, self._client, health), self._check)

    @property
    def problem(self) -> str:
        return self._server.problem

    async def open(self) -> None:
        await self._server.open()

    async def close(self) -> None:
        await self._server.close()
        await self._client.aclose()

    @abstractmethod
    async def _check(self, server: Server) -> None:
        """Raises: NoAnswer, or a RerankError that says why the server cannot be used."""


def read_answer(server: Server, read: Callable[[Any], T], answer: Any) -> T:
    """Reads an answer of a server. Raises: ModelServerUnfit if it has another form than documented."""
    try:
        return read(answer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelServerUnfit(
            f"{server.url} answered in a form that is not that of its kind ({error!r}): {str(answer)[:200]}; correct "
            "served_by.kind"
        ) from error
