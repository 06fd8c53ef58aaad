"""Sends each call of a model to the server with the fewest calls in flight, and leaves out servers that fail.

Every server is looked at about once a second. One that was gone is checked in full before it is used again, as at the
start: it may have come back with another model. Scoring and greedy generation change nothing at the server, so a call
whose answer was lost is safe to send once more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
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
#: Seconds that `open` waits for the first look at all servers. The others do not start later for a server that hangs.
_OPEN_S = 10.0


class ServerPool:
    """The servers of one model.

    Args:
        model: the name of the model in the configuration, for the log.
        servers: at least one.
        check: checks a server in full before it is used. Raises NoAnswer, or a RerankError that says what is wrong.
    """

    def __init__(self, model: str, servers: Sequence[Server], check: Callable[[Server], Awaitable[None]]) -> None:
        self._model = model
        self._servers = servers
        self._check = check
        self._watches: list[asyncio.Task[None]] = []
        self._first_looks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """The problems of all servers, if no server can be used; empty if one can."""
        problems = [server.problem for server in self._servers]
        return "" if None in problems else "; ".join(map(str, problems))

    async def open(self) -> None:
        """Checks all servers and watches them from then on. Returns after some seconds if a check takes longer."""
        self._first_looks = [asyncio.create_task(self._look_at(server)) for server in self._servers]
        self._watches = [
            asyncio.create_task(self._watch(server, look), name=server.url)
            for server, look in zip(self._servers, self._first_looks, strict=True)
        ]
        try:
            await asyncio.wait(self._first_looks, timeout=_OPEN_S)
        except asyncio.CancelledError:  # the service is stopped before it has started
            await self.close()
            raise

    async def close(self) -> None:
        """Ends all checks."""
        tasks = self._first_looks + self._watches
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def call(self, use: Callable[[Server], Awaitable[T]]) -> T:
        """Returns the result of `use` on a server. A call without an answer is sent again, if possible to another one.

        Waits for the first look at a server if it has not ended yet and no other server can be used.

        Raises:
            ModelServerUnavailable: no server answered.
            RerankError: what `use` raised, or what is wrong with all servers.
        """
        while self.problem and (looks := [look for look in self._first_looks if not look.done()]):
            await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
        tried: list[Server] = []
        while True:
            server = self._pick(tried)
            try:
                return await use(server)
            except NoAnswer as error:
                tried.append(server)
                if error.lost:
                    server.doubt.set()
                if len(tried) == _ATTEMPTS or error.retry_after_s > _MAX_WAIT_S:
                    raise ModelServerUnavailable(
                        f"{error}, after {len(tried)} attempts; send the request again later"
                    ) from error
                wait_s = max(error.retry_after_s, _BACKOFF_S * 2 ** (len(tried) - 1))
            await asyncio.sleep(_jittered(wait_s))

    def _pick(self, tried: Sequence[Server]) -> Server:
        """Returns the usable server that this call tried least often, and of those the one with fewest in flight."""
        usable = [server for server in self._servers if server.problem is None]
        if not usable:
            raise self._all_problems()
        return min(
            usable, key=lambda server: (tried.count(server), server.doubt.is_set(), server.in_flight, random.random())
        )

    def _all_problems(self) -> RerankError:
        kinds = [type(server.problem) for server in self._servers]
        kind = ModelServerUnavailable if ModelServerUnavailable in kinds else ModelServerUnfit
        return kind(f"no server of model {self._model} can be used: {self.problem}")

    async def _watch(self, server: Server, first_look: asyncio.Task[None]) -> None:
        await asyncio.wait({first_look})
        while True:
            is_there = server.problem is not None and not isinstance(server.problem, ModelServerUnavailable)
            with suppress(TimeoutError):
                await asyncio.wait_for(server.doubt.wait(), _jittered(_LOOK_AT_UNFIT_S if is_there else _LOOK_S))
            await self._look_at(server)
            server.doubt.clear()

    async def _look_at(self, server: Server) -> None:
        """Updates the problem of a server."""
        before = server.problem
        try:
            await server.check_health()
            if before is not None:
                await self._check(server)
            server.problem = None
        except NoAnswer as error:
            server.problem = ModelServerUnavailable(f"{error}; start the server, or correct served_by.urls")
        except RerankError as error:
            server.problem = error
        except Exception as error:  # a bug of ours must not end the watch
            log.exception("model %s: the check of %s failed", self._model, server.url)
            server.problem = ModelServerUnfit(f"{server.url}: its check failed: {error!r}; this is a bug")
        if str(server.problem) != str(before):
            log.warning("model %s: %s", self._model, server.problem or f"{server.url} is used")


def _jittered(seconds: float) -> float:
    """Up to half more, so that many callers do not come back at the same moment."""
    return seconds * random.uniform(1.0, 1.5)
