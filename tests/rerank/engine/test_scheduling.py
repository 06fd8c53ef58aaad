"""The engine's scheduler under load, in virtual time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from statistics import quantiles

import pytest

from rerank.engine.throughput import Throughput
from tests.rerank.engine.simulation import (
    LONG,
    SHORT,
    Device,
    EngineScheduler,
    Fifo,
    Request,
    simulate,
    workload,
)

DEVICE = Device()
SEED = 0


def short_p99_s(requests: list[Request]) -> float:
    return quantiles([request.latency_s for request in requests if request.candidates < LONG], n=100)[98]


@pytest.mark.parametrize("load", [0.7, 0.85])
def test_short_requests_wait_at_least_a_fifth_less_than_with_fifo(load: float) -> None:
    engine, fifo = (workload(load, 600, DEVICE, SEED) for _ in range(2))
    simulate(engine, EngineScheduler(DEVICE), DEVICE)
    simulate(fifo, Fifo(DEVICE), DEVICE)
    assert short_p99_s(engine) <= 0.8 * short_p99_s(fifo)
    assert all(math.isfinite(request.finished_s) for request in engine)


def test_shorter_requests_go_first_also_among_callers() -> None:
    """By the shares of callers alone, the mean latency would be that of FIFO."""
    engine, fifo = (workload(0.85, 600, DEVICE, SEED) for _ in range(2))
    for number, request in enumerate(engine):
        request.caller = str(number)
    simulate(engine, EngineScheduler(DEVICE), DEVICE)
    simulate(fifo, Fifo(DEVICE), DEVICE)
    assert sum(request.latency_s for request in engine) <= 0.85 * sum(request.latency_s for request in fifo)


@pytest.mark.parametrize("is_aged", [True, False])
def test_ageing_ends_a_long_request_under_a_constant_stream_of_short_ones(is_aged: bool) -> None:
    """The stream alone exceeds the device's capacity. By age_factor, one second of work waits at most 20 s for later
    requests and for the backlog that they leave; without ageing, it waits for the end of the stream."""
    device = Device(max_batch_tokens=1)
    long = Request(1.0, LONG, [2000] * 9)
    stream = [Request(0.04 * number, 20, [2000]) for number in range(1000)]
    simulate([*stream, long], EngineScheduler(device, None if is_aged else Throughput(age_factor=1e-9)), device)
    assert math.isfinite(long.finished_s)
    assert (long.finished_s < max(request.arrived_s for request in stream)) is is_aged


SLOW = Device(tokens_per_s=500, max_batch_tokens=512)


#: One window of 1,300 tokens takes 2.6 s, and a short request may preempt it.
INTERRUPTIBLE = Device(tokens_per_s=500, max_batch_tokens=512, interruptible=True)


@pytest.mark.parametrize("idle_s", [0, 2])
@pytest.mark.parametrize("windows", [1, 9])
def test_short_requests_preempt_long_windows_of_another_caller(windows: int, idle_s: int) -> None:
    """Although their caller has used half of the machine before. If the machine had been idle, so that the long request
    was a probe of its rate, it counted as no work at all and was not preempted for 2.6 s."""
    short = [Request(0.7 + number + (idle_s if number > 9 else 0), SHORT, [250]) for number in range(60)]
    long = Request(10.1 + idle_s, LONG if windows > 1 else SHORT, [1300] * windows, caller="other")
    simulate([*short, long], EngineScheduler(INTERRUPTIBLE), INTERRUPTIBLE)
    assert max(request.latency_s for request in short) <= 1.1 * INTERRUPTIBLE.seconds(250)
    assert long.latency_s <= 2.5 * windows * INTERRUPTIBLE.seconds(1300)


def test_short_requests_are_answered_at_once_beside_a_flood_of_longer_ones() -> None:
    """They use .55 of the machine: more than an equal share. They took up to 12 s, or were refused, as they were
    expected behind the whole flood."""
    warm_up = [Request(float(number), SHORT, [250]) for number in range(10)]
    flood = [Request(10.1, SHORT, [600], 70.1, caller="flood") for _ in range(500)]
    short = [Request(10.7 + number, SHORT, [275], 70.7 + number) for number in range(58)]
    simulate([*warm_up, *flood, *short], EngineScheduler(INTERRUPTIBLE), INTERRUPTIBLE)
    assert not any(request.rejected for request in short)
    assert max(request.latency_s for request in short) <= 1.1 * INTERRUPTIBLE.seconds(275)
    assert sum(request.in_time for request in flood) * INTERRUPTIBLE.seconds(600) >= 60 / 3
    assert any(request.rejected for request in flood)


def test_flood_of_one_caller_keeps_no_place_from_another() -> None:
    """The flood fills the queue up to its deadlines, and the requests of the other caller are admitted all the same."""
    for caller, admitted in (("", False), ("other", True)):
        warm_up = [Request(0.1 * number, SHORT, [250]) for number in range(3)]
        flood = [Request(5.0, SHORT, [500], deadline_s=35.0) for _ in range(100)]
        late = Request(6.0, SHORT, [250], deadline_s=11.0, caller=caller)
        simulate([*warm_up, *flood, late], EngineScheduler(SLOW), SLOW)
        assert any(request.rejected for request in flood)
        assert late.rejected is not admitted
        assert late.in_time is admitted


@dataclass(frozen=True)
class Varying(Device):
    """The durations of batches vary around what is estimated, by a log-normal factor."""

    variation: float = 0.0
    draw: random.Random = field(default_factory=random.Random)

    def seconds(self, tokens: int, start_s: float = 0.0) -> float:
        return super().seconds(tokens) * math.exp(self.draw.gauss(0, self.variation))


@pytest.mark.parametrize("load", [1.2, 4.0])
@pytest.mark.parametrize("variation", [0.0, 0.2])
def test_at_most_a_twentieth_of_the_admitted_requests_is_late(load: float, variation: float) -> None:
    """More than a quarter was at four times the load."""
    requests = workload(load, 400, DEVICE, SEED, deadline_s=2.0)
    simulate(requests, EngineScheduler(DEVICE), Varying(variation=variation, draw=random.Random(SEED)))
    admitted = [request for request in requests if not request.rejected]
    assert sum(not request.in_time for request in admitted) <= 0.05 * len(admitted)
    assert len(admitted) >= 0.3 * len(requests)


@pytest.mark.parametrize("stall_s", [5.0, 3600.0])
@pytest.mark.parametrize("batches_before", [1, 10])
def test_stall_of_the_machine_rejects_no_request_two_seconds_after_it(stall_s: float, batches_before: int) -> None:
    """The first batch is not measured; where the stall hits the second one, no other is known."""
    device = Device(stall_at_s=batches_before + 0.01, stall_s=stall_s)
    before = [Request(float(number), SHORT, [2000], number + 1.0) for number in range(batches_before)]
    stalled = Request(float(batches_before), SHORT, [2000])
    well_s = batches_before + stall_s + 0.1
    after = [Request(well_s + 0.2 * number, SHORT, [2000], well_s + 0.2 * number + 0.2) for number in range(100)]
    simulate([*before, stalled, *after], EngineScheduler(device), device)
    assert stalled.latency_s > stall_s
    assert all(request.in_time for request in after if request.arrived_s >= well_s + 2)
    if batches_before > 1:
        assert all(request.in_time for request in after), "among other batches, a stalled one rejects no request at all"
