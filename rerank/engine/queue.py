"""Queue of a phase: start-time fair queueing between callers, shortest remaining work first within a caller."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, Protocol, TypeAlias, TypeVar

from rerank.engine.request import ModelPhase, Request


class Queued(Protocol):
    """A part of a request, which has this share of a batch's tokens, 1 or more."""

    @property
    def request(self) -> Request: ...

    @property
    def tokens(self) -> int: ...


E = TypeVar("E", bound=Queued)

#: The search for work that fits into a batch ends after this many requests whose next part does not fit.
_LOOK_AHEAD = 16
#: Tokens of remaining work that are offset by one token that runs while a request waits.
_AGE_FACTOR = 0.05

_Heap: TypeAlias = list[tuple[float, int, Request]]


@dataclass
class _Caller:
    """A caller's waiting requests, and its tag: the virtual time in tokens when its next work starts."""

    tag: float = -math.inf
    #: (priority, number, request); a request may be in it several times, or have no queue any more.
    heap: _Heap = field(default_factory=list)


class FairQueue(Generic[E]):
    """The queue of a phase. It forms batches: work of the caller whose turn it is, and of others as far as it fits.

    Callers that always wait have equal shares, by start-time fair queueing (Goyal et al., 1996):

    - A caller's tag grows by the tokens that run for it, as soon as they start. Its tag and the remaining tokens of its
      first request decide on its turn: a short request goes first, and a caller that had less catches up.
    - The virtual time is the least tag of the callers that wait. A caller that begins to wait has saved up no share:
      its tag is at least the virtual time. Half of what it is ahead is forgiven, so that a caller that asks now and
      then may have two thirds next to one that always waits. A request keeps its place between its windows.
    - The virtual time also grows with all that runs, so that no stream of new callers lets an old request starve.

    The first request of a caller is the one with the least remaining tokens minus `_AGE_FACTOR` times its age, which is
    counted in tokens that have run since it came: shortest remaining work first, as in PrefillOnly (arXiv 2505.07203),
    with ageing, so that no request starves. One with r tokens is preceded only by requests that come before another
    r / _AGE_FACTOR tokens have run. No measured rate has a part in it, so none can mislead it.

    The work for a batch grows with the callers that wait, not with their requests: these are in a heap for each caller,
    by the priority that they had when they were last queued or refreshed, and only those at its top are looked at.

    Args:
        phase: of all its work.
        max_batch_tokens: limit of a batch. Work that exceeds it runs alone: with 1000, ten windows of 100 tokens share
            a batch, and one of 1500 runs alone.
    """

    def __init__(self, phase: ModelPhase, max_batch_tokens: int) -> None:
        self._phase = phase
        self.max_batch_tokens = max_batch_tokens
        self._queues: dict[Request, deque[E]] = {}
        self._callers: dict[str, _Caller] = {}
        self._virtual_time = self._ran_tokens = 0.0
        self._numbers = itertools.count()  # requests of equal priority run in the order of arrival

    def __len__(self) -> int:
        """The number of parts of work."""
        return sum(map(len, self._queues.values()))

    def add(self, work: E) -> None:
        if work.request not in self._queues:
            self._queues[work.request] = deque()
            self.refresh(work.request)
        self._queues[work.request].append(work)

    def refresh(self, request: Request) -> None:
        """Computes the priority of a request again, because less of its work remains."""
        if request in self._queues:
            caller = self._callers.setdefault(request.share.name, _Caller())
            if not caller.heap:
                least = request.tags.get(self._phase, self._virtual_time)
                caller.tag = max(least, (least + caller.tag) / 2)
            heapq.heappush(caller.heap, (self._priority(request), next(self._numbers), request))

    def discard(self, request: Request) -> None:
        """Removes the work of a request."""
        self._queues.pop(request, None)

    def may_preempt(self, running: Sequence[E], preempted_tokens: int) -> bool:
        """Returns True if the request whose turn it is may run in the middle of a running batch.

        It has less than half of the work of each request in the batch, and fewer tokens have run in the middle of the
        batch than it has itself, so that it takes about twice its time at most.
        """
        turns = self._turns()
        if not turns or preempted_tokens >= sum(work.tokens for work in running):
            return False
        first = turns[0].heap[0][2]
        return all(2 * self._remaining(first) < self._remaining(work.request) for work in running)

    def _remaining(self, request: Request) -> float:
        return request.remaining.get(self._phase, 0.0)

    def _turns(self) -> list[_Caller]:
        """Lists the callers that wait, in the order of their turns."""
        waiting = list[_Caller]()
        for name, caller in list(self._callers.items()):
            while caller.heap and caller.heap[0][2] not in self._queues:
                heapq.heappop(caller.heap)
            if caller.heap:
                waiting.append(caller)
            elif caller.tag <= self._virtual_time:
                del self._callers[name]
        waiting.sort(key=lambda caller: caller.tag + self._remaining(caller.heap[0][2]))
        return waiting

    def _priority(self, request: Request) -> float:
        """Remaining tokens - _AGE_FACTOR * age, up to a constant that all requests share; the smallest runs first."""
        return self._remaining(request) + _AGE_FACTOR * request.tokens_before.setdefault(self._phase, self._ran_tokens)

    def next_batch(self) -> list[E]:
        """Removes and returns the next batch; it is empty if nothing waits. Work of equal priority keeps its order."""
        batch, tokens = list[E](), 0
        turns = self._turns()
        heaps, heap, left_out = map(attrgetter("heap"), turns), _Heap(), _Heap()
        while len(left_out) < _LOOK_AHEAD and tokens < self.max_batch_tokens:
            if not (heap := heap or next(heaps, [])):
                break
            queued_priority, number, request = heapq.heappop(heap)
            if not (queue := self._queues.get(request)):
                continue
            priority = self._priority(request)
            if priority > queued_priority:  # more work remains than was expected before its windows were encoded
                heapq.heappush(heap, (priority, number, request))
                continue
            while queue and (not batch or tokens + queue[0].tokens <= self.max_batch_tokens):
                batch.append(queue.popleft())
                tokens += batch[-1].tokens
            if queue:
                left_out.append((priority, number, request))
            else:
                del self._queues[request]
        for entry in left_out:
            heapq.heappush(self._callers[entry[2].share.name].heap, entry)
        if batch:
            self._virtual_time = max(self._virtual_time, min(turns, key=attrgetter("tag")).tag)
            self._virtual_time += _AGE_FACTOR * tokens
            self._ran_tokens += tokens
        for work in batch:  # its tokens count as used as soon as it starts
            caller = self._callers[work.request.share.name]
            caller.tag += work.tokens
            work.request.tags[self._phase] = caller.tag
        return batch
