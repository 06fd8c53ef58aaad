"""The queue of a phase: start-time fair queueing among callers, shortest remaining work first for each caller."""

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
    """A piece of work of a request; `tokens`, at least 1, is its size in a batch."""

    @property
    def request(self) -> Request: ...

    @property
    def tokens(self) -> int: ...


E = TypeVar("E", bound=Queued)

#: Number of requests whose next piece does not fit into a batch after which the search for more work ends.
_LOOK_AHEAD = 16
#: Tokens that are subtracted from the remaining work of a request for each token that runs while it waits.
_AGE_FACTOR = 0.05

_Heap: TypeAlias = list[tuple[float, int, Request]]


@dataclass
class _Caller:
    """A caller's waiting requests, and its tag: the virtual time in tokens when its next work starts."""

    tag: float = -math.inf
    #: (priority, number, request). A request may have several entries; entries without work are dropped later.
    heap: _Heap = field(default_factory=list)


class FairQueue(Generic[E]):
    """The queue of a phase. A batch has work of the caller that is next, then work of other callers while it fits.

    Callers that always have waiting work get equal numbers of tokens, by start-time fair queueing (Goyal et al., 1996):

    - A caller's tag grows by the tokens of its work when the work starts. The caller with the smallest sum of its tag
      and the remaining tokens of its first request is next. So short requests run first, and a caller that had fewer
      tokens catches up.
    - The virtual time is the smallest tag of the waiting callers. The tag of a caller that begins to wait is at least
      the virtual time, so that no caller saves up tokens while it is idle. If its tag is ahead of the virtual time,
      half of the difference is dropped. So a caller that sends single requests can get up to two thirds of the tokens
      beside a caller that always has waiting work. A request keeps its tag between its windows.
    - The virtual time also grows with all tokens that run, so that a stream of new callers cannot starve an old
      request.

    The first request of a caller is the one with the smallest priority: its remaining tokens minus `_AGE_FACTOR` times
    its age, which is the number of tokens that have run since it came. This is shortest remaining work first, as in
    PrefillOnly (arXiv 2505.07203), with ageing against starvation: a request with r remaining tokens is overtaken only
    by requests that come before another r / _AGE_FACTOR tokens have run. Priorities do not depend on measured rates,
    which can be wrong.

    The cost of forming a batch grows with the number of waiting callers, not of their requests: each caller has a heap
    of its requests by the priority that they had when they were last queued or refreshed, and only its top is read.

    Args:
        phase: the phase of the queued work.
        max_batch_tokens: largest number of tokens in a batch of several windows. With 1000, ten windows of 100 tokens
            share a batch, and a window of 1500 tokens runs alone.
    """

    def __init__(self, phase: ModelPhase, max_batch_tokens: int) -> None:
        self._phase = phase
        self.max_batch_tokens = max_batch_tokens
        self._queues: dict[Request, deque[E]] = {}
        self._callers: dict[str, _Caller] = {}
        self._virtual_time = self._ran_tokens = 0.0
        self._numbers = itertools.count()  # requests of equal priority run in the order of arrival

    def __len__(self) -> int:
        """Number of waiting pieces of work."""
        return sum(map(len, self._queues.values()))

    def add(self, work: E) -> None:
        """Appends work to the waiting work of its request."""
        if work.request not in self._queues:
            self._queues[work.request] = deque()
            self.refresh(work.request)
        self._queues[work.request].append(work)

    def refresh(self, request: Request) -> None:
        """Computes the priority of a request again, after its remaining work has changed."""
        if request in self._queues:
            caller = self._callers.setdefault(request.usage.name, _Caller())
            if not caller.heap:
                least = request.tags.get(self._phase, self._virtual_time)
                caller.tag = max(least, (least + caller.tag) / 2)
            heapq.heappush(caller.heap, (self._priority(request), next(self._numbers), request))

    def discard(self, request: Request) -> None:
        """Removes the work of a request."""
        self._queues.pop(request, None)

    def may_preempt(self, running: Sequence[E], preempted_tokens: int) -> bool:
        """True if the next request may run in the middle of a running batch.

        Its remaining work must be less than half of the remaining work of every request in the batch. After work with
        as many tokens as the batch has preempted it, no more may, so that the batch takes about twice its time at most.

        Args:
            running: the work of the batch.
            preempted_tokens: number of tokens of the work that has preempted the batch so far.
        """
        waiting = self._waiting_callers()
        if not waiting or preempted_tokens >= sum(work.tokens for work in running):
            return False
        first = waiting[0].heap[0][2]
        return all(2 * self._remaining(first) < self._remaining(work.request) for work in running)

    def _remaining(self, request: Request) -> float:
        return request.remaining.get(self._phase, 0.0)

    def _waiting_callers(self) -> list[_Caller]:
        """The callers with waiting work, the next one first. Drops heap entries and callers without work."""
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
        """Remaining tokens - _AGE_FACTOR * age, plus the same number for all requests; the smallest runs first."""
        return self._remaining(request) + _AGE_FACTOR * request.tokens_before.setdefault(self._phase, self._ran_tokens)

    def next_batch(self) -> list[E]:
        """Removes and returns the next batch, empty if nothing waits. Equal priorities run in the order of arrival."""
        batch, tokens = list[E](), 0
        callers = self._waiting_callers()
        heaps, heap, left_out = map(attrgetter("heap"), callers), _Heap(), _Heap()
        while len(left_out) < _LOOK_AHEAD and tokens < self.max_batch_tokens:
            if not (heap := heap or next(heaps, [])):
                break
            queued_priority, number, request = heapq.heappop(heap)
            if not (queue := self._queues.get(request)):
                continue
            priority = self._priority(request)
            if priority > queued_priority:  # its encoded windows have more tokens than was estimated
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
            heapq.heappush(self._callers[entry[2].usage.name].heap, entry)
        if batch:
            self._virtual_time = max(self._virtual_time, min(callers, key=attrgetter("tag")).tag)
            self._virtual_time += _AGE_FACTOR * tokens
            self._ran_tokens += tokens
        for work in batch:  # its tokens count as used as soon as it starts
            caller = self._callers[work.request.usage.name]
            caller.tag += work.tokens
            work.request.tags[self._phase] = caller.tag
        return batch
