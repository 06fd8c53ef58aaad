"""Simulation of the engine's scheduler, and of first come, first served, in virtual time.

Work estimates and queue are the engine's own. A batch takes a fixed time plus a time per token. The windows of a
request run one after the other, as in the sliding schedule. `python -m tests.rerank.engine.simulation` prints
the share of requests that are answered within their deadline, by load.
"""

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

from rerank.engine.accounts import CallUsage
from rerank.engine.queue import FairQueue
from rerank.engine.request import ModelPhase, Phase
from rerank.engine.request import Request as EngineRequest
from rerank.engine.strategies import RankStage, Sliding
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Query, ScoreKind

MODEL = "model"
RANKING = ModelPhase(Phase.RANK, MODEL)
STRATEGY = Sliding(20, 10)
INFO = RankerInfo("simulated", "", "", "", STRATEGY.window_size, ScoreKind.RANK, max_passage_tokens=0)
#: Numbers of candidates that take one, two and nine windows.
SHORT, MIDDLE, LONG = 20, 30, 100


@dataclass(frozen=True)
class Device:
    """A simulated device; by default about a 7B model in bfloat16 on an H200 (estimated): 2,000 tokens take 56 ms.

    On an `interruptible` device, short requests preempt a running batch at any moment. The durations of batches vary by
    a log-normal factor, whose logarithm has the standard deviation `variation`.
    """

    tokens_per_s: float = 40_000.0
    batch_s: float = 0.006
    max_batch_tokens: int = 4_000
    interruptible: bool = False
    variation: float = 0.0
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def seconds(self, tokens: int) -> float:
        """Duration of a batch."""
        return (self.batch_s + tokens / self.tokens_per_s) * math.exp(self.draw.gauss(0, self.variation))


@dataclass(eq=False)
class Request:
    """A request with the tokens of each of its windows, and its outcome."""

    arrived_s: float
    candidates: int
    windows: Sequence[int]
    deadline_s: float = math.inf
    caller: str = ""
    ran: int = 0
    finished_s: float = math.inf

    @property
    def in_time(self) -> bool:
        return self.finished_s <= self.deadline_s

    @property
    def latency_s(self) -> float:
        return self.finished_s - self.arrived_s


@dataclass
class Fifo:
    """First come, first served, window by window."""

    device: Device
    waiting: list[Request] = field(default_factory=list)

    def arrive(self, request: Request, now_s: float) -> None:
        self.waiting.append(request)

    def next_batch(self, now_s: float) -> list[Request]:
        size, tokens = 0, 0
        for request in self.waiting:
            tokens += request.windows[request.ran]
            if size and tokens > self.device.max_batch_tokens:
                break
            size += 1
        batch, self.waiting = self.waiting[:size], self.waiting[size:]
        return batch

    def preempting_batch(self, running: Sequence[Request], preempted_by: int, now_s: float) -> list[Request]:
        return []

    def complete(self, batch: Sequence[Request]) -> None:
        self.waiting += [request for request in batch if request.ran < len(request.windows)]


@dataclass(frozen=True)
class NextWindow:
    """The next window of a request, as it waits in the engine's queue."""

    of: Request
    request: EngineRequest
    tokens: int


class EngineScheduler:
    """The engine's scheduler without its event loop, threads and timeouts."""

    def __init__(self, device: Device) -> None:
        self._queue: FairQueue[NextWindow] = FairQueue(RANKING, device.max_batch_tokens)
        self._requests: dict[Request, EngineRequest] = {}

    def arrive(self, request: Request, now_s: float) -> None:
        """Queues the request's first window."""
        candidates = (Passage("", ""),) * request.candidates
        stages, usage = (RankStage(MODEL, STRATEGY),), CallUsage(request.caller)
        self._requests[request] = asked = EngineRequest(Query(""), candidates, stages, usage=usage)
        asked.begin({MODEL: INFO})
        asked.begin_stage(stages[0], INFO)
        self._submit(request)

    def _submit(self, request: Request) -> None:
        asked, tokens = self._requests[request], request.windows[request.ran]
        asked.add_windows(1, tokens)
        self._queue.add(NextWindow(request, asked, tokens))

    def next_batch(self, now_s: float) -> list[Request]:
        """The requests whose next windows form a batch. Those whose deadline has passed have ended."""
        for late in [request for request in self._requests if request.deadline_s < now_s]:
            self._end(late)
        return [window.of for window in self._queue.next_batch()]

    def preempting_batch(self, running: Sequence[Request], preempted_by: int, now_s: float) -> list[Request]:
        """The requests whose next windows preempt a running batch, which `preempted_by` tokens preempted so far."""
        windows = [
            NextWindow(one, self._requests[one], one.windows[one.ran]) for one in running if one in self._requests
        ]
        return self.next_batch(now_s) if self._queue.may_preempt(windows, preempted_by) else []

    def complete(self, batch: Sequence[Request]) -> None:
        """Queues the next windows of the requests of a batch that has run."""
        for request in batch:
            if request not in self._requests:
                continue
            if request.ran == len(request.windows):
                self._end(request)
            else:
                self._submit(request)

    def _end(self, request: Request) -> None:
        self._queue.discard(self._requests.pop(request))


def simulate(requests: Sequence[Request], scheduler: EngineScheduler | Fifo, device: Device) -> None:
    """Runs all requests and sets their outcomes."""
    arrivals = sorted(requests, key=lambda request: request.arrived_s)
    events = [(request.arrived_s, number, request) for number, request in enumerate(arrivals)]
    heapq.heapify(events)

    def run_batch(batch: list[Request], start_s: float, interruptible: bool) -> float:
        """Runs a batch and those that preempt it. Returns when it has ended."""
        ended_s, preempted_by = start_s + device.seconds(tokens_of(batch)), 0
        while events and events[0][0] <= ended_s:
            at_s, _, arrived = heapq.heappop(events)
            scheduler.arrive(arrived, at_s)
            while interruptible and (urgent := scheduler.preempting_batch(batch, preempted_by, at_s)):
                preempted_by += tokens_of(urgent)
                until_s = run_batch(urgent, at_s, interruptible=False)
                ended_s, at_s = ended_s + until_s - at_s, until_s
        for request in batch:
            request.ran += 1
            if request.ran == len(request.windows):
                request.finished_s = ended_s
        scheduler.complete(batch)
        return ended_s

    now_s = 0.0
    while True:
        while events and events[0][0] <= now_s:
            scheduler.arrive(heapq.heappop(events)[2], now_s)
        if batch := scheduler.next_batch(now_s):
            now_s = run_batch(batch, now_s, device.interruptible)
        elif events:
            now_s = events[0][0]
        else:
            return


def tokens_of(batch: Sequence[Request]) -> int:
    """The tokens of the next windows of the requests."""
    return sum(request.windows[request.ran] for request in batch)


def workload(load: float, n: int, device: Device, seed: int, deadline_s: float = math.inf) -> list[Request]:
    """n requests at random intervals, which keep the device busy for a share `load` of the time without batching."""
    draw = random.Random(seed)
    kinds = draw.choices((SHORT, MIDDLE, LONG), weights=(2, 2, 6), k=n)
    windows = [[int(min(3200, max(900, draw.gauss(2000, 250)))) for _ in range(_windows(kind))] for kind in kinds]
    mean_s = sum(device.seconds(tokens) for row in windows for tokens in row) / n
    arrived_s, requests = 0.0, []
    for candidates, row in zip(kinds, windows, strict=True):
        arrived_s += draw.expovariate(load / mean_s)
        requests.append(Request(arrived_s, candidates, row, arrived_s + deadline_s))
    return requests


def _windows(candidates: int) -> int:
    return STRATEGY.cost(candidates).max_windows


def share_in_time(load: float, seed: int, n: int = 800, callers: int = 20) -> float:
    """The share of requests that end within 2 s, where the durations of batches vary by 20 %."""
    requests, draw = workload(load, n, Device(), seed, deadline_s=2.0), random.Random(seed)
    for request in requests:
        request.caller = str(draw.randrange(callers))
    device = Device(variation=0.2, draw=random.Random(seed))
    simulate(requests, EngineScheduler(device), device)
    return sum(request.in_time for request in requests) / n


def main() -> None:
    """Prints the mean and the standard deviation of ten seeds by load."""
    for load in (0.7, 0.85, 1.0, 1.2, 2.0, 4.0):
        shares = [share_in_time(load, seed) for seed in range(10)]
        print(f"load {load}: {mean(shares):.3f} ± {stdev(shares):.3f} answered in time", flush=True)


if __name__ == "__main__":
    main()
