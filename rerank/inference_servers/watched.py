"""Sends the calls of a model to its server, and none while the server is away or does not fit.

The server is looked at about once a second. One that was gone is checked in full before it is used again, as at the
start: it may have come back with another model. Scoring and greedy generation change nothing at the server, so a call
whose answer was lost is safe to send once more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from rerank.errors import ModelServerUnavailable, ModelServerUnfit, RerankError
from rerank.inference_servers.server import NoAnswer, Server

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often a call is sent before it fails.
_ATTEMPTS = 3
#: The wait before the second attempt, in seconds, without its jitter; it doubles with every other one.
_BACKOFF_S = 0.1
#: The longest wait that a server may ask for; a server that asks for more counts as unavailable.
_MAX_WAIT_S = 5.0
#: Seconds between two looks at a server, and at one that is there and does not fit; without the jitter.
_LOOK_S, _LOOK_AT_UNFIT_S = 1.0, 10.0
#: Seconds that `open` waits for the first look.
_OPEN_S = 10.0


class WatchedServer:
    """The server of one model.

    Args:
        model: the name of the model in the configuration, for the log.
        server: its address, and whether it is there.
        check: checks it in full before it is used. Raises NoAnswer, or a RerankError that says what is wrong.
    """

    def __init__(self, model: str, server: Server, check: Callable[[], Awaitable[None]]) -> None:
        self._model, self._server, self._check = model, server, check
        self._problem: RerankError | None = ModelServerUnavailable(f"{server.url} has not answered yet")
        self._doubt = asyncio.Event()  # a call lost its connection, so that the server is looked at
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """Says why no requests are sent to the server; empty if they are."""
        return str(self._problem or "")

    async def open(self) -> None:
        """Checks the server and watches it from then on. Returns after some seconds if the check takes longer."""
        first_look = asyncio.create_task(self._look())
        self._tasks = [first_look, asyncio.create_task(self._watch(first_look), name=self._server.url)]
        try:
            await asyncio.wait([first_look], timeout=_OPEN_S)
        except asyncio.CancelledError:  # the service is stopped before it has started
            await self.close()
            raise

    async def close(self) -> None:
        """Ends all checks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def call(self, use: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `use`, which calls the server. A call without an answer is sent again.

        Waits for the first look if it has not ended yet.

        Raises:
            ModelServerUnavailable: the server did not answer.
            RerankError: what `use` raised, or what is wrong with the server.
        """
        if self._problem and self._tasks:
            await asyncio.wait(self._tasks[:1])
        for attempt in range(_ATTEMPTS):
            if self._problem:
                is_away = isinstance(self._problem, ModelServerUnavailable)
                kind = ModelServerUnavailable if is_away else ModelServerUnfit
                raise kind(f"the server of model {self._model} cannot be used: {self._problem}")
            try:
                return await use()
            except NoAnswer as error:
                if error.lost:
                    self._doubt.set()
                if attempt == _ATTEMPTS - 1 or error.retry_after_s > _MAX_WAIT_S:
                    raise ModelServerUnavailable(
                        f"{error}, after {attempt + 1} attempts; send the request again later"
                    ) from error
                wait_s = max(error.retry_after_s, _BACKOFF_S * 2**attempt)
            await asyncio.sleep(_jittered(wait_s))
        raise AssertionError("the last attempt returns or raises; this is a bug")

    async def _watch(self, first_look: asyncio.Task[None]) -> None:
        await asyncio.wait({first_look})
        while True:
            is_there = self._problem is not None and not isinstance(self._problem, ModelServerUnavailable)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), _jittered(_LOOK_AT_UNFIT_S if is_there else _LOOK_S))
            await self._look()
            self._doubt.clear()

    async def _look(self) -> None:
        """Updates the problem of the server."""
        before = self.problem
        try:
            await self._server.check_health()
            if before:
                await self._check()
            self._problem = None
        except NoAnswer as error:
            self._problem = ModelServerUnavailable(f"{error}; start the server, or correct served_by.url")
        except RerankError as error:
            self._problem = error
        except Exception as error:  # a bug of ours must not end the watch
            log.exception("model %s: the check of %s failed", self._model, self._server.url)
            self._problem = ModelServerUnfit(f"{self._server.url}: its check failed: {error!r}; this is a bug")
        if self.problem != before:
            log.warning("model %s: %s", self._model, self.problem or f"{self._server.url} is used")


def _jittered(seconds: float) -> float:
    """Up to half more, so that many callers do not come back at the same moment."""
    return seconds * random.uniform(1.0, 1.5)
