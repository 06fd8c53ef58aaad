"""Connects a ranker to the server that ranks its windows, and reads the answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from rerank.config.served import ServerSettings
from rerank.errors import ModelServerUnfit
from rerank.inference_servers.api import Post
from rerank.inference_servers.server import Server, WatchedServer, client_of
from rerank.rankers.base import Ranker

T = TypeVar("T")


class RemoteRanker(Ranker):
    """A ranker whose model a server runs.

    Args:
        name: of the model in the configuration.
        settings: of the server.
        api_key: sent to it; empty: none.
        health: path that answers GET if it is ready; empty: there is none.
    """

    def __init__(self, name: str, settings: ServerSettings, api_key: str, health: str = "/health") -> None:
        self._client = client_of(settings.url, api_key)
        self._server = Server(settings.url, self._client, health)
        self._watched = WatchedServer(name, self._server, self._check)

    @property
    def problem(self) -> str:  # type: ignore[override]
        return self._watched.problem

    async def open(self) -> None:
        await self._watched.open()

    async def close(self) -> None:
        await self._watched.close()
        await self._client.aclose()

    @abstractmethod
    async def _check(self) -> None:
        """Raises: NoAnswer, or a RerankError that says why the server cannot be used."""

    async def _ask(self, asked: Post | str, read: Callable[[Any], T]) -> T:
        """Sends a request, or gets a path, and reads the answer.

        Raises: NoAnswer; ModelServerUnfit if the server refuses, or answers in another form than documented.
        """
        answer = await (self._server.get(asked) if isinstance(asked, str) else self._server.post(asked))
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            problem = f"answered in another form than its kind has ({error!r}): {str(answer)[:200]}"
            raise self._unfit(f"{problem}; correct served_by.kind") from error

    def _unfit(self, problem: str) -> ModelServerUnfit:
        return ModelServerUnfit(f"{self._server.url} {problem}")
