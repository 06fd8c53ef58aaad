"""Simulation of the engine's scheduler, and of first come, first served, in virtual time.

Admission control, work estimates and queue are the engine's own. A batch takes a fixed time plus a time per token.
The windows of a request run one after the other, as those of the sliding schedule do.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rerank.engine.admission import AdmissionController
from rerank.engine.estimate import expected_work, window_tokens
from rerank.engine.job import ModelStage, QueuedJob, RankJob, Stage
from rerank.engine.queue import FairQueue
from rerank.engine.strategies import Sliding, Step
from rerank.engine.throughput import Throughput
from rerank.errors import DeadlineExceeded, Overloaded
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Query, ScoreKind

MODEL = "model"
RANKING = ModelStage(Stage.RANK, MODEL)
STRATEGY = Sliding(20, 10)
INFO = RankerInfo("simulated", "", "", "", STRATEGY.window_size, ScoreKind.RANK, max_passage_tokens=0)
#: Numbers of candidates that take one, two and nine windows.
SHORT, MIDDLE, LONG = 20, 30, 100


@dataclass(frozen=True)
class Device:
    """A simulated device; by default about a 7B model in bfloat16 on an H200 (estimated): 2,000 tokens take 56 ms.

    The batch that runs at `stall_at_s` takes `stall_s` longer, as on a machine that is suspended for that time. On an
    `interruptible` device, short requests preempt a running batch at any moment.
    """

    tokens_per_s: float = 40_000.0
    batch_s: float = 0.006
    max_batch_tokens: int = 4_000
    stall_at_s: float = math.inf
    stall_s: float = 0.0
    interruptible: bool = False

    def seconds(self, tokens: int, start_s: float = 0.0) -> float:
        """Duration of a batch that starts at `start_s`."""
        seconds = self.batch_s + tokens / self.tokens_per_s
        return seconds + (self.stall_s if start_s <= self.stall_at_s < start_s + seconds else 0.0)


@dataclass(eq=False)
class Request:
    """A request with the tokens of each of its windows, and its outcome."""

    arrived_s: float
    candidates: int
    windows: Sequence[int]
    deadline_s: float = math.inf
    caller: str = ""
    ran: int = 0
    rejected: bool = False
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

    def complete(self, batch: Sequence[Request], seconds: float, now_s: float) -> None:
        self.waiting += [request for request in batch if request.ran < len(request.windows)]


@dataclass(frozen=True)
class NextWindow:
    """The next window of a request, as it waits in the engine's queue."""

    of: Request
    job: QueuedJob
    tokens: int


class EngineScheduler:
    """The engine's scheduler without its event loop and threads."""

    def __init__(self, device: Device, throughput: Throughput | None = None) -> None:
        self._throughput = throughput or Throughput()
        self._queue: FairQueue[NextWindow] = FairQueue(RANKING, self._throughput, device.max_batch_tokens)
        self._admission = AdmissionController(self._throughput, max_queue_tokens=10**9)
        self._admitted: dict[Request, QueuedJob] = {}

    def arrive(self, request: Request, now_s: float) -> None:
        """Queues the request's first window, or sets `rejected`."""
        candidates = (Passage("", ""),) * request.candidates
        asked = RankJob(Query(""), candidates, (Step(MODEL, STRATEGY),))
        admitted = QueuedJob(request.caller, request.arrived_s, request.deadline_s)
        admitted.expect(expected_work(asked, {MODEL: INFO}, self._throughput.token_ratio))
        try:
            self._admission.admit(admitted, now_s)
        except (DeadlineExceeded, Overloaded):
            request.rejected = True
            return
        self._admitted[request] = admitted
        self._submit(request)

    def _submit(self, request: Request) -> None:
        admitted, tokens = self._admitted[request], request.windows[request.ran]
        size = min(request.candidates, STRATEGY.window_size)
        self._throughput.observe_tokens(MODEL, admitted, tokens, window_tokens(INFO, [Passage("", "")], size))
        admitted.remaining[ModelStage(Stage.PREPARE, MODEL)] = 0.0
        admitted.add_windows(MODEL, [tokens])
        self._queue.add(NextWindow(request, admitted, tokens))

    def next_batch(self, now_s: float) -> list[Request]:
        """The requests whose next windows form a batch."""
        batch, late = self._queue.next_batch(now_s)
        for window in late:
            self._release(window.of)
        return [window.of for window in batch]

    def preempting_batch(self, running: Sequence[Request], preempted_by: int, now_s: float) -> list[Request]:
        """The requests whose next windows preempt a running batch, which so many tokens have preempted so far."""
        admitted = [job for job in running if job in self._admitted]
        windows = [NextWindow(job, self._admitted[job], job.windows[job.ran]) for job in admitted]
        return self.next_batch(now_s) if self._queue.may_preempt(windows, preempted_by) else []

    def complete(self, batch: Sequence[Request], seconds: float, now_s: float) -> None:
        """Records that the batch is done, and queues the next windows of its requests."""
        tokens = {self._admitted.get(request, QueuedJob()): request.windows[request.ran - 1] for request in batch}
        self._throughput.observe(RANKING, tokens, seconds, now_s)
        for request in batch:
            if request.ran == len(request.windows):
                self._release(request)
            elif request in self._admitted:
                self._submit(request)

    def _release(self, request: Request) -> None:
        if request in self._admitted:
            admitted = self._admitted.pop(request)
            self._queue.discard(admitted)
            self._admission.release(admitted)


def simulate(requests: Sequence[Request], scheduler: EngineScheduler | Fifo, device: Device) -> None:
    """Runs all requests and sets their outcomes."""
    arrivals = sorted(requests, key=lambda request: request.arrived_s)
    events = [(request.arrived_s, number, request) for number, request in enumerate(arrivals)]
    heapq.heapify(events)

    def run_batch(batch: list[Request], start_s: float, interruptible: bool) -> float:
        """Runs a batch and those that preempt it. Returns when it has ended."""
        seconds = device.seconds(tokens_of(batch), start_s)
        ended_s, preempted_by = start_s + seconds, 0
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
        scheduler.complete(batch, seconds, ended_s)
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
