"""Callers of a service: what each may do, and what it has in flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rerank.config.settings import Positive, Settings
from rerank.errors import Overloaded

_RETRY_S = 1.0


class CallerLimits(Settings):
    """Limits of the requests of one API key's holder; None: only the service's limits.

    Attributes:
        max_calls: number of its calls in flight. Further ones fail with RESOURCE_EXHAUSTED.
        max_queue_tokens: expected tokens of its requests in work; a request that exceeds it fails with
            RESOURCE_EXHAUSTED, unless it is the only one.
    """

    max_calls: Positive | None = None
    max_queue_tokens: Positive | None = None


class Caller:
    """The holder of an API key; or, in a service without keys, everyone together.

    Attributes:
        name: the name of the key; empty for everyone.
        limits: what the caller may do from now on.
    """

    def __init__(self, name: str, limits: CallerLimits) -> None:
        self.name = name
        self.limits = limits
        self._queued_tokens = 0.0
        self._calls = 0

    def enter(self) -> None:
        """Counts a call as in flight until `leave`. Raises: Overloaded."""
        limit = self.limits.max_calls
        if limit is not None and self._calls >= limit:
            raise Overloaded(
                f"{self._calls} calls of key {self.name} are in flight, the most that it may have; retry when one ends",
                _RETRY_S,
                {"exceeded": "max_calls of the key", "key": self.name, "limit": str(limit)},
            )
        self._calls += 1

    def leave(self) -> None:
        """Ends a call that `enter` has counted."""
        self._calls -= 1

    @contextmanager
    def queueing(self, tokens: float) -> Iterator[None]:
        """Reserves tokens of the caller's quota during the block. Raises: Overloaded."""
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
ANONYMOUS = Caller("", CallerLimits())
