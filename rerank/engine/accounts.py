"""Accounts: the shared resources that each caller uses, and which calls give way when a resource is used up.

A caller may use all of a resource while no other caller needs it. When a resource is used up, calls of the caller that
uses the most are ended: first calls whose message has not come or whose answer is not read, then the latest call. This
is called giving way. If the new call is of this caller, the new call is refused instead. So each of n callers that
always have calls gets an n-th of the resource (longest queue drop: Suter et al., 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from rerank.errors import Overloaded

#: Largest number of calls that gave way and have not ended yet; a client that does not read delays the end of its call.
_MAX_ENDING = 100
#: Time in seconds until a refused call may be sent again, if there is no better estimate.
_RETRY_S = 1.0


class Shared(Enum):
    """A resource that all callers share: the setting that limits it, and the unit in which it is counted."""

    CALLS = "max_calls", "calls in flight"
    BYTES = "max_bytes_in_flight", "bytes in flight"
    TOKENS = "max_queue_tokens", "tokens queued"

    def __init__(self, setting: str, unit: str) -> None:
        self.setting, self.unit = setting, unit

    __hash__ = object.__hash__  # Enum's is slow Python, and each call looks members up some sixty times


def _nothing() -> dict[Shared, int]:
    """Resource → 0."""
    return {Shared.CALLS: 0, Shared.BYTES: 0, Shared.TOKENS: 0}


@dataclass(eq=False)
class CallUsage:
    """The shared resources that one call uses.

    Attributes:
        name: name of the API key or of the connection; empty for calls in the same process.
        quotas: resource → limit of the API key on the amount that the caller uses.
        give_way: ends the call with `ended_by`; None for a call that never gives way.
        is_idle: whether the call's message has not come, or its answer is not read.
        held: resource → amount that the call uses.
        ended_by: error of a call that has given way, and uses nothing any more.
    """

    name: str = ""
    quotas: Mapping[Shared, int] = field(default_factory=dict)
    give_way: Callable[[], None] | None = None
    is_idle: bool = False
    held: dict[Shared, int] = field(default_factory=_nothing)
    ended_by: Overloaded | None = None


@dataclass(eq=False)
class _Account:
    """The resources that a caller uses, and its calls in the order of their arrival."""

    held: dict[Shared, int] = field(default_factory=_nothing)
    calls: dict[CallUsage, None] = field(default_factory=dict)


class Accounts:
    """The accounts of all callers. Its methods are called on the event loop.

    Args:
        limits: resource → limit on what all callers use together. A single call may exceed it.
    """

    def __init__(self, limits: Mapping[Shared, int]) -> None:
        self.limits = dict(limits)
        self._accounts: dict[str, _Account] = {}
        self._held = _nothing()
        self._ending = set[CallUsage]()

    def check_quota(self, usage: CallUsage, kind: Shared, amount: int) -> None:
        """Raises: Overloaded if the amount exceeds the quota of the caller's key and is not its only use."""
        if (limit := usage.quotas.get(kind)) is None:
            return
        held = self.held_by(usage.name, kind)
        if held and held + amount > limit:
            problem = f"key {usage.name} has {held} {kind.unit}; {amount} more exceed its limit of {limit}"
            raise _overloaded(f"{kind.setting} of the key", problem, _RETRY_S, limit, key=usage.name)

    def held_by(self, caller: str, kind: Shared) -> int:
        """The amount of a resource that a caller uses."""
        account = self._accounts.get(caller)
        return account.held[kind] if account else 0

    def acquire(
        self, usage: CallUsage, kind: Shared, amount: int, retry_s: Callable[[], float] = lambda: _RETRY_S
    ) -> None:
        """Adds an amount of a resource to the use of a call. Calls of other callers give way if it is used up.

        Args:
            retry_s: returns the time in seconds until a refused call may be sent again.

        Raises:
            Overloaded: the resource is used up and the caller uses the most of it, or the call has given way.
        """
        if usage.ended_by is not None:
            raise usage.ended_by
        giving_way = self._calls_to_end(usage, kind, amount)
        if giving_way is None:
            raise self._refused(usage, kind, amount, retry_s())
        for call in giving_way:
            call.ended_by = self._gave_way(call, kind)
            self.leave(call)
            self._ending.add(call)
            assert call.give_way is not None
            call.give_way()
        if amount:
            account = self._accounts.setdefault(usage.name, _Account())
            account.calls[usage] = None
            self._add(account, usage, kind, amount)

    def release(self, usage: CallUsage, kind: Shared) -> None:
        """Sets the amount of a resource that a call uses to 0."""
        if not usage.held[kind]:
            return
        account = self._accounts[usage.name]
        self._add(account, usage, kind, -usage.held[kind])
        if not any(usage.held.values()):
            del account.calls[usage]
        if not account.calls:
            del self._accounts[usage.name]

    def leave(self, usage: CallUsage) -> None:
        """Releases all resources of a call that has ended."""
        self._ending.discard(usage)
        for kind in usage.held:
            self.release(usage, kind)

    @contextmanager
    def acquired(self, usage: CallUsage, kind: Shared, amount: int, retry_s: Callable[[], float]) -> Iterator[None]:
        """Adds an amount to the use of a call during the block. Raises: Overloaded, see `acquire`."""
        self.acquire(usage, kind, amount, retry_s)
        try:
            yield
        finally:
            self.release(usage, kind)

    def _add(self, account: _Account, usage: CallUsage, kind: Shared, amount: int) -> None:
        for held in (usage.held, account.held, self._held):
            held[kind] += amount

    def _calls_to_end(self, usage: CallUsage, kind: Shared, amount: int) -> list[CallUsage] | None:
        """The calls that must give way so that an amount fits; None if no calls can make room for it."""
        excess = self._held[kind] + amount - self.limits[kind]
        if excess <= 0 or not self._held[kind]:
            return []
        ended = dict[CallUsage, None]()
        left = {name: account.held[kind] for name, account in self._accounts.items() if name != usage.name}
        needed = self.held_by(usage.name, kind) + amount
        while excess > 0:
            call = self._next_to_end(kind, left, needed, ended)
            if call is None or len(ended) + len(self._ending) >= _MAX_ENDING:
                return None
            ended[call] = None
            left[call.name] -= call.held[kind]
            excess -= call.held[kind]
        return [*ended]

    def _next_to_end(
        self, kind: Shared, left: Mapping[str, int], needed: int, ended: Container[CallUsage]
    ) -> CallUsage | None:
        """The next call to give way: an idle call of a caller that uses `needed` or more, or any call of a caller that
        uses more; None if there is none.

        Args:
            left: other caller → the amount that it uses after the calls in `ended` have given way.
            needed: the amount that the new call's caller would use.
            ended: calls that give way already.
        """
        for is_idle in (True, False):
            for name in sorted(left, key=left.__getitem__, reverse=True):
                if left[name] < needed or (left[name] == needed and not is_idle):
                    break
                calls = self._accounts[name].calls
                for call in calls if is_idle else reversed(calls):
                    if call.is_idle is is_idle and call.held[kind] and call.give_way and call not in ended:
                        return call
        return None

    def _refused(self, usage: CallUsage, kind: Shared, amount: int, retry_s: float) -> Overloaded:
        own, held, limit = self.held_by(usage.name, kind), self._held[kind], self.limits[kind]
        problem = f"{held} {kind.unit}, {own} of them yours; {amount} more exceed the limit of {limit}"
        return _overloaded(kind.setting, problem, retry_s, limit, held=str(held))

    def _gave_way(self, call: CallUsage, kind: Shared) -> Overloaded:
        own, held, limit = self.held_by(call.name, kind), self._held[kind], self.limits[kind]
        problem = f"{held} {kind.unit}, {own} of them yours, the most; the limit is {limit}, and others ask"
        return _overloaded(kind.setting, problem, _RETRY_S, limit, held=str(held))


def _overloaded(exceeded: str, problem: str, retry_s: float, limit: int, **details: str) -> Overloaded:
    """The error of a call that exceeds the limit of this name."""
    return Overloaded(
        f"{problem}; retry in {max(1, retry_s):.0f} s", retry_s, {"exceeded": exceeded, "limit": str(limit), **details}
    )
