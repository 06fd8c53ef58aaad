"""The places of messages that are received at the same time, because each may need the memory of the largest one."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

#: Places in all and of one connection. Further messages wait, so that slow clients leave places for other connections.
_PLACES, _PLACES_OF_ONE = 16, 2
#: Seconds that messages have to arrive while others wait for a place.
_HURRY_S = 0.15
#: Connections whose conduct is remembered.
_REMEMBERED = 10_000


class ReceivingPlaces:
    """Gives places to the messages that are received: first to connections whose messages have come in time.

    So those that announce messages and send none hold up only each other.
    """

    def __init__(self) -> None:
        self._free = _PLACES
        self._of_one: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        #: Rank, number and turn of the messages that wait, as a heap.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timeouts: set[asyncio.Timeout] = set()
        #: Connection → how many of its messages were late; -1 if none was and one came in time.
        self._ranks: dict[str, int] = {}

    @asynccontextmanager
    async def place(self, peer: str, arrival: asyncio.Timeout, seconds: float) -> AsyncIterator[None]:
        """Waits for a place, and keeps it during the block.

        Args:
            peer: the connection of the message.
            arrival: ends the block; it is set to the time that the message may take.
            seconds: how long it may take if nobody waits for a place.
        """
        async with self._of_one.setdefault(peer, asyncio.Semaphore(_PLACES_OF_ONE)):
            await self._take(peer)
            self._timeouts.add(arrival)
            try:
                arrival.reschedule(_now() + (_HURRY_S if self._waiting else seconds))
                yield
                self._ranks[peer] = self._ranks.pop(peer, 0) or -1
            except asyncio.CancelledError:
                if arrival.expired():
                    self._ranks[peer] = max(self._ranks.pop(peer, 0), 0) + 1
                raise
            finally:
                if len(self._ranks) > _REMEMBERED:
                    del self._ranks[next(iter(self._ranks))]
                self._timeouts.discard(arrival)
                self._give()

    async def _take(self, peer: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._ranks.get(peer, 0), next(self._numbers), turn))
        self._hurry()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment
                self._give()
            raise

    def _give(self) -> None:
        """Gives a place that is not used any more to whoever waits."""
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _hurry(self) -> None:
        """Gives the messages that are received only a short time more."""
        soon_s = _now() + _HURRY_S
        for timeout in self._timeouts:
            if not timeout.expired():  # it may have passed a moment ago, and its call not have learned of it yet
                timeout.reschedule(min(timeout.when() or soon_s, soon_s))


def _now() -> float:
    return asyncio.get_running_loop().time()
