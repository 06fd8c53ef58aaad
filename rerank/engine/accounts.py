"""Accounts: what each caller has of what all callers share, and who gives way where it is short.

A caller may take what nobody else asks for. Where there is no room, the caller that has the most gives way: first with
a call whose message has not come or whose answer is not read, then with its latest one. If that is the caller who asks,
it is refused. So each of n callers that always ask has an n-th (longest queue drop: Suter et al., 1998).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from rerank.errors import Overloaded

#: Calls that give way and have not ended yet; a client that does not read delays the end of its call.
_MAX_ENDING = 100
#: When a refused call may come again, where nothing is known of it.
_RETRY_S = 1.0


class Shared(Enum):
    """A resource that all callers share: the name of the setting that limits it, and the unit that is counted."""

    CALLS = "max_calls", "calls in flight"
    BYTES = "max_bytes_in_flight", "bytes in flight"
    TOKENS = "max_queue_tokens", "tokens queued"

    def __init__(self, setting: str, unit: str) -> None:
        self.setting, self.unit = setting, unit


@dataclass(eq=False)
class CallerShare:
    """The part of the shared resources that one call has.

    Attributes:
        name: of its caller: of the API key, or else the connection; empty in a program's own process.
        quotas: the most that the caller may have, of its key.
        give_way: ends the call with `ended_by`; None: it goes on in any case.
        is_idle: its message has not come, or its answer is not read.
        held: what it has.
        ended_by: why it has given way; it counts no more.
    """

    name: str = ""
    quotas: Mapping[Shared, int] = field(default_factory=dict)
    give_way: Callable[[], None] | None = None
    is_idle: bool = False
    held: Counter[Shared] = field(default_factory=Counter)
    ended_by: Overloaded | None = None


@dataclass(eq=False)
class _Account:
    """The resources of a caller, and its calls in the order of their arrival."""

    held: Counter[Shared] = field(default_factory=Counter)
    calls: dict[CallerShare, None] = field(default_factory=dict)


class Accounts:
    """The accounts of all callers, by their names. All on the event loop.

    Args:
        limits: on what all callers have together. One call alone may exceed them.
    """

    def __init__(self, limits: Mapping[Shared, int]) -> None:
        self.limits = dict(limits)
        self._accounts: dict[str, _Account] = {}
        self._held = Counter[Shared]()
        self._ending = set[CallerShare]()

    def check_quota(self, share: CallerShare, kind: Shared, amount: int) -> None:
        """Raises: Overloaded, the caller's key allows no more; it allows any amount to a caller that has nothing."""
        limit, held = share.quotas.get(kind), self.held_by(share.name, kind)
        if limit is not None and held and held + amount > limit:
            problem = f"key {share.name} has {held} {kind.unit}; {amount} more exceed its limit of {limit}"
            raise _overloaded(f"{kind.setting} of the key", problem, _RETRY_S, limit, key=share.name)

    def held_by(self, caller: str, kind: Shared) -> int:
        account = self._accounts.get(caller)
        return account.held[kind] if account else 0

    def take(
        self, share: CallerShare, kind: Shared, amount: int, retry_s: Callable[[], float] = lambda: _RETRY_S
    ) -> None:
        """Counts an amount to a call; others give way to it.

        Raises: Overloaded, its own caller has the most, or it has given way.

        Args:
            retry_s: seconds until a refused call may come again.
        """
        if share.ended_by is not None:
            raise share.ended_by
        ends = self._in_the_way(share, kind, amount)
        if ends is None:
            raise self._refused(share, kind, amount, retry_s())
        for call in ends:
            call.ended_by = self._gave_way(call, kind)
            self.leave(call)
            self._ending.add(call)
            assert call.give_way is not None
            call.give_way()
        account = self._accounts.setdefault(share.name, _Account())
        account.calls[share] = None
        self._add(account, share, kind, amount)

    def give(self, share: CallerShare, kind: Shared) -> None:
        """Takes back what a call has of a kind."""
        account = self._accounts.get(share.name)
        if account is None or share not in account.calls:
            return
        self._add(account, share, kind, -share.held[kind])
        if not any(share.held.values()):
            del account.calls[share]
        if not account.calls:
            del self._accounts[share.name]

    def leave(self, share: CallerShare) -> None:
        """Takes back all resources of a call that has ended."""
        self._ending.discard(share)
        for kind in Shared:
            self.give(share, kind)

    @contextmanager
    def taken(self, share: CallerShare, kind: Shared, amount: int, retry_s: Callable[[], float]) -> Iterator[None]:
        """Counts an amount to a call in the block. Raises: Overloaded, see `take`."""
        self.take(share, kind, amount, retry_s)
        try:
            yield
        finally:
            self.give(share, kind)

    def _add(self, account: _Account, share: CallerShare, kind: Shared, amount: int) -> None:
        for held in (share.held, account.held, self._held):
            held[kind] += amount

    def _in_the_way(self, share: CallerShare, kind: Shared, amount: int) -> list[CallerShare] | None:
        """The calls that give way so that there is room for an amount; None if there is none."""
        excess = self._held[kind] + amount - self.limits[kind] if self._held[kind] else 0
        going = dict[CallerShare, None]()
        others = self._accounts.items() if excess > 0 else ()
        left = {name: account.held[kind] for name, account in others if name != share.name}
        needed = self.held_by(share.name, kind) + amount
        while excess > 0:
            call = self._next_to_go(kind, left, needed, going)
            if call is None or len(going) + len(self._ending) >= _MAX_ENDING:
                return None
            going[call] = None
            left[call.name] -= call.held[kind]
            excess -= call.held[kind]
        return [*going]

    def _next_to_go(
        self, kind: Shared, left: Mapping[str, int], needed: int, going: Container[CallerShare]
    ) -> CallerShare | None:
        """The next call to give way: an idle one of a caller with as much as is needed, or any of one with more."""
        for is_idle in (True, False):
            for name in sorted(left, key=left.__getitem__, reverse=True):
                if left[name] < needed or (left[name] == needed and not is_idle):
                    break
                calls = self._accounts[name].calls
                for call in calls if is_idle else reversed(calls):
                    if call.is_idle is is_idle and call.held[kind] and call.give_way and call not in going:
                        return call
        return None

    def _refused(self, share: CallerShare, kind: Shared, amount: int, retry_s: float) -> Overloaded:
        own, held, limit = self.held_by(share.name, kind), self._held[kind], self.limits[kind]
        problem = f"{held} {kind.unit}, {own} of them yours; {amount} more exceed the limit of {limit}"
        return _overloaded(kind.setting, problem, retry_s, limit, held=str(held))

    def _gave_way(self, call: CallerShare, kind: Shared) -> Overloaded:
        own, held, limit = self.held_by(call.name, kind), self._held[kind], self.limits[kind]
        problem = f"{held} {kind.unit}, {own} of them yours, the most; the limit is {limit}, and others ask"
        return _overloaded(kind.setting, problem, _RETRY_S, limit, held=str(held))


def _overloaded(exceeded: str, problem: str, retry_s: float, limit: int, **details: str) -> Overloaded:
    """The error of a call that exceeds the limit of this name."""
    return Overloaded(
        f"{problem}; retry in {max(1, retry_s):.0f} s", retry_s, {"exceeded": exceeded, "limit": str(limit), **details}
    )
