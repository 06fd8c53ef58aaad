"""Rankers whose model runs in a server, and the ranker for rerank APIs: it sends texts, and gets a score for each."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from rerank.config.served import RerankServerSettings, ServerSettings
from rerank.errors import ModelServerUnfit
from rerank.inference_servers.api import Post
from rerank.inference_servers.rerank_apis import RERANK_APIS
from rerank.inference_servers.server import Server, WatchedServer, client_of
from rerank.rankers.base import Ranker, RankerInfo
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Window, WindowRanking
from rerank.util.combining import nfc

T = TypeVar("T")

#: Largest number of passages in a window of an API with pointwise scores.
_MOST_PASSAGES = 10_000
#: The request that checks a server before it is used.
_SAMPLE = (Query("how do birds find their way"), ("A violin has four strings.", "Pigeons follow roads and rivers."))


class RemoteRanker(Ranker):
    """A ranker whose model runs in a server.

    Args:
        name: the model's name in the configuration.
        settings: the settings of the server.
        api_key: the key that is sent to the server; empty: no key is sent.
        health: path that answers GET if the server is ready; empty: the server has no such path.
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

    async def _request(self, request: Post | str, read: Callable[[Any], T]) -> T:
        """Sends a POST request, or a GET request for a path, and reads the answer.

        Args:
            read: reads the JSON of the answer. Raises LookupError, TypeError, ValueError or AttributeError if its form
                is unknown.

        Raises: NoAnswer; ModelServerUnfit if the server refuses, or answers in an unknown form.
        """
        answer = await (self._server.get(request) if isinstance(request, str) else self._server.post(request))
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            problem = f"answered in another form than its kind has ({error!r}): {str(answer)[:200]}"
            raise self._unfit(f"{problem}; correct served_by.kind") from error

    def _unfit(self, problem: str) -> ModelServerUnfit:
        return ModelServerUnfit(f"{self._server.url} {problem}")


class ApiRanker(RemoteRanker):
    """Ranks a window by the scores of a rerank API.

    A window is one call, or several calls if an API with pointwise scores takes fewer passages in a call.

    Args:
        name: the model's name in the configuration.
        servers: the servers and their API.
        window_size: largest number of passages in a window of a listwise API.
        api_key: the key that is sent to the servers; empty: no key is sent.
    """

    def __init__(self, name: str, servers: RerankServerSettings, window_size: int, api_key: str) -> None:
        self._api = RERANK_APIS[servers.kind]
        super().__init__(name, servers, api_key, self._api.health)
        self._servers = servers
        #: Limits the calls at the same time. The engine limits only the windows, which may be several calls.
        self._free = asyncio.Semaphore(servers.max_in_flight)
        pointwise = ScoreKind.POINTWISE_PROBABILITY if self._api.gives_probabilities else ScoreKind.POINTWISE
        is_listwise = servers.scores == "listwise"
        self.info = RankerInfo(
            kind="api",
            model_id=servers.model,
            model_revision="",
            template_sha256="",
            max_window_size=window_size if is_listwise else _MOST_PASSAGES,
            score_kind=ScoreKind.WINDOW_SCORE if is_listwise else pointwise,
            reads_instruction=servers.instruction,
            max_in_flight=servers.max_in_flight,
            relevance="" if is_listwise or not self._api.gives_probabilities else "score",
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        return PreparedTexts(query, tuple(passages))

    def encode(self, window: Window) -> Window:
        """Estimates the tokens of a window at about four characters each. The server makes the prompts."""
        texts = (window.query.text, *(passage.text for passage in window.passages))
        return replace(window, tokens=sum(2 + len(text) // 4 for text in texts))

    async def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        """Returns the scores of the API, unchanged."""
        return [await self._score(window) for window in parts]

    async def _score(self, window: Window) -> WindowRanking:
        query, texts = window.query, [passage.text for passage in window.passages]
        size = len(texts) if self._servers.scores == "listwise" else self._api.max_passages
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        calls = [asyncio.create_task(self._call(query, part)) for part in parts]
        try:
            return WindowRanking(tuple(chain.from_iterable(await asyncio.gather(*calls))))
        finally:
            for call in calls:  # if one has failed, the others are not needed
                call.cancel()

    async def _call(self, query: Query, texts: Sequence[str]) -> list[float]:
        async with self._free:
            return await self._watched.call(partial(self._scores, query, texts))

    async def _scores(self, query: Query, texts: Sequence[str]) -> list[float]:
        """Returns the scores of texts. Raises: NoAnswer, ModelServerUnfit."""
        sent = [_as_utf8(text) for text in texts]
        request = self._api.request(
            self._servers.model, _as_utf8(query.text), sent, self._servers.fields, _as_utf8(query.instruction)
        )
        return await self._request(request, partial(self._api.scores, n=len(texts)))

    async def _check(self) -> None:
        """Requests the scores of two passages, which fails with a wrong kind, model or key."""
        await self._scores(*_SAMPLE)


def _as_utf8(text: str) -> str:
    """Returns the text in NFC, with question marks instead of halves of surrogate pairs, which JSON cannot carry."""
    return nfc(text).encode("utf-8", "replace").decode("utf-8")
