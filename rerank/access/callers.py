"""Callers of a service: what each may do, and what it has in flight."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rerank.config.settings import Positive, Settings
from rerank.errors import MAX_QUOTED_CHARS, Overloaded, PermissionDenied
from rerank.names import FirstStageKind, OnFailure
from rerank.util.many import Pace

_RETRY_S = 1.0


class CallerLimits(Settings):
    """Limits of the requests of one API key's holder; None stands for the limits of the service only.

    Attributes:
        models: names of the models that its requests may name, also as a preranker. A request that names none needs
            the default model to be among them.
        max_calls: number of its calls in flight. Further ones fail with RESOURCE_EXHAUSTED; the requests of its streams
            wait for their turn, and a call of its own waits for that of a stream's request.
        max_queue_tokens: expected tokens of its requests in work; a request that exceeds it fails with
            RESOURCE_EXHAUSTED, unless it is the only one.
        on_failure: what its requests get in the place of a failure of the service, unless they say it themselves:
            `error` or `first-stage`. Default: error.
        first_stage_kind: the kind of the first stage that its candidates come from, unless its requests say it
            themselves: `lexical` or `neural`. Default: the service's setting.
    """

    models: tuple[str, ...] | None = None
    max_calls: Positive | None = None
    max_queue_tokens: Positive | None = None
    on_failure: OnFailure | None = None
    first_stage_kind: FirstStageKind | None = None


class Place:
    """The place of a call among those that the holder of a key has in flight.

    Attributes:
        stream: the stream that brings the call as one of its requests; None for any other call.
        is_taken: set when it is the call's turn.
    """

    def __init__(self, caller: Caller, stream: object | None) -> None:
        self.stream = stream
        self.is_taken = asyncio.Event()
        self._caller = caller

    def leave(self) -> None:
        """Ends the call, or its waiting; the next one takes its turn."""
        self._caller.leave(self)


class Caller:
    """The holder of an API key; or, in a service without keys, everyone together.

    Its streams, and its other calls together, have equal shares of the calls that it may have in flight.

    Attributes:
        name: the name of the key; empty for everyone.
        limits: what the caller may do; `follow` replaces them.
        pace: starts the requests of its streams.
    """

    def __init__(self, name: str, limits: CallerLimits) -> None:
        self.name = name
        self.limits = limits
        self.pace = Pace()
        self._queued_tokens = 0.0
        #: Calls in flight and calls that wait, of each stream; None stands for those that are in no stream.
        self._in_flight = Counter[object | None]()
        self._waiting: dict[object | None, deque[Place]] = {}
        #: The number of the latest turn of each stream that waits or has calls in flight.
        self._latest_turn: dict[object | None, int] = {}
        self._turns = itertools.count(1)

    def follow(self, limits: CallerLimits) -> None:
        """Holds the caller to these limits from now on."""
        self.limits = limits

    def enter(self, stream: object | None = None) -> Place:
        """Counts a call until it leaves its place, which it may have to wait for.

        Args:
            stream: the stream that brings the call; None for any other call.

        Raises:
            Overloaded: as many calls outside of streams as the key may have are in flight, or wait.
        """
        limit, own = self.limits.max_calls, self._in_flight[None] + len(self._waiting.get(None, ()))
        if limit is not None and stream is None and own >= limit:
            raise self._too_many_calls(own)
        place = Place(self, stream)
        self._waiting.setdefault(stream, deque()).append(place)
        self._give_turns()
        return place

    def leave(self, place: Place) -> None:
        """Ends a call that `enter` has counted, or its waiting."""
        if place.is_taken.is_set():
            self._in_flight[place.stream] -= 1
            if self._counts_in_pace(place.stream):
                self.pace.end()
        else:
            self._waiting[place.stream].remove(place)
        if not self._in_flight[place.stream] and not self._waiting.get(place.stream):
            self._in_flight.pop(place.stream, None)
            self._waiting.pop(place.stream, None)
            self._latest_turn.pop(place.stream, None)
        self._give_turns()

    def _too_many_calls(self, calls: int) -> Overloaded:
        """The error of a call that exceeds `max_calls`."""
        return Overloaded(
            f"{calls} calls of key {self.name} are in flight, the most that it may have; retry when one ends",
            _RETRY_S,
            {"exceeded": "max_calls of the key", "key": self.name, "limit": str(self.limits.max_calls)},
        )

    def _give_turns(self) -> None:
        """Lets waiting calls go on, first of the stream with the fewest in flight."""
        limit = self.limits.max_calls
        while limit is None or self._in_flight.total() < limit:
            waiting = [stream for stream, places in self._waiting.items() if places]
            if not waiting:
                return
            stream = min(waiting, key=lambda each: (self._in_flight[each], self._latest_turn.get(each, 0)))
            self._latest_turn[stream] = next(self._turns)
            self._in_flight[stream] += 1
            self._waiting[stream].popleft().is_taken.set()
            if self._counts_in_pace(stream):
                self.pace.begin()

    def _counts_in_pace(self, stream: object | None) -> bool:
        """True for a call outside of streams, for whose end a stream of the same key waits; everyone's are others'."""
        return stream is None and bool(self.name)

    def check_models(self, names: Iterable[str]) -> None:
        """Raises: PermissionDenied if the key does not allow one of these models."""
        if self.limits.models is None:
            return
        allowed = self.limits.models
        for name in names:
            if name not in allowed:
                raise PermissionDenied(
                    f"key {self.name} does not allow model {name[:MAX_QUOTED_CHARS]!r}; name one of: "
                    f"{', '.join(allowed) or 'none'}",
                    {"key": self.name, "model": name},
                )

    @contextmanager
    def queueing(self, tokens: float) -> Iterator[None]:
        """Counts the tokens of a request as in work until the block ends. Raises: Overloaded."""
        limit = self.limits.max_queue_tokens
        if limit is not None and self._queued_tokens and self._queued_tokens + tokens > limit:
            raise Overloaded(
                f"{self._queued_tokens:.0f} tokens of key {self.name} are in work; {tokens:.0f} more exceed its limit "
                f"of {limit}; retry when a request has ended",
                _RETRY_S,
                {
                    "exceeded": "max_queue_tokens of the key",
                    "key": self.name,
                    "queued_tokens": f"{self._queued_tokens:.0f}",
                    "limit": str(limit),
                },
            )
        self._queued_tokens += tokens
        try:
            yield
        finally:
            self._queued_tokens -= tokens


#: A caller whose key was not checked yet; nothing counts for it.
STRANGER = Caller("", CallerLimits())
