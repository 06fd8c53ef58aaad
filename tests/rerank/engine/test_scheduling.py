"""The engine's scheduler under load, in virtual time."""

import math
from statistics import quantiles

import pytest

from tests.rerank.engine.simulation import (
    LONG,
    SHORT,
    Device,
    EngineScheduler,
    Fifo,
    Request,
    share_in_time,
    simulate,
    workload,
)

DEVICE = Device()
SEED = 0


def short_p99_s(requests: list[Request]) -> float:
    return quantiles([request.latency_s for request in requests if request.candidates < LONG], n=100)[98]


@pytest.mark.parametrize("load", [0.7, 0.85])
def test_short_requests_wait_at_least_a_fifth_less_than_with_fifo(load):
    engine, fifo = (workload(load, 600, DEVICE, SEED) for _ in range(2))
    simulate(engine, EngineScheduler(DEVICE), DEVICE)
    simulate(fifo, Fifo(DEVICE), DEVICE)
    assert short_p99_s(engine) <= 0.8 * short_p99_s(fifo)
    assert all(math.isfinite(request.finished_s) for request in engine)


def test_shorter_requests_go_first_also_among_callers():
    """By the shares of callers alone, the mean latency would be FIFO's."""
    engine, fifo = (workload(0.85, 600, DEVICE, SEED) for _ in range(2))
    for number, request in enumerate(engine):
        request.caller = str(number)
    simulate(engine, EngineScheduler(DEVICE), DEVICE)
    simulate(fifo, Fifo(DEVICE), DEVICE)
    assert sum(request.latency_s for request in engine) <= 0.85 * sum(request.latency_s for request in fifo)


@pytest.mark.parametrize("is_aged", [True, False])
def test_ageing_ends_a_long_request_under_a_constant_stream_of_short_ones(is_aged, monkeypatch):
    """The stream alone exceeds the device's capacity. A long request waits for twenty times its work at most, and for
    the backlog that it leaves; without ageing, it waits for the end of the stream."""
    device = Device(max_batch_tokens=1)
    long = Request(1.0, LONG, [2000] * 9)
    stream = [Request(0.04 * number, 20, [2000]) for number in range(1000)]
    if not is_aged:
        monkeypatch.setattr("rerank.engine.queue._AGE_FACTOR", 1e-9)
    simulate([*stream, long], EngineScheduler(device), device)
    assert math.isfinite(long.finished_s)
    assert (long.finished_s < max(request.arrived_s for request in stream)) is is_aged


SLOW = Device(tokens_per_s=500, max_batch_tokens=512)


#: One window of 1,300 tokens takes 2.6 s, and a short request may preempt it.
INTERRUPTIBLE = Device(tokens_per_s=500, max_batch_tokens=512, interruptible=True)


@pytest.mark.parametrize("windows", [1, 9])
def test_short_requests_preempt_long_windows_of_another_caller(windows):
    """Although their caller has used half of the machine before."""
    short = [Request(0.7 + number, SHORT, [250]) for number in range(60)]
    long = Request(10.1, LONG if windows > 1 else SHORT, [1300] * windows, caller="other")
    simulate([*short, long], EngineScheduler(INTERRUPTIBLE), INTERRUPTIBLE)
    assert max(request.latency_s for request in short) <= 1.1 * INTERRUPTIBLE.seconds(250)
    assert long.latency_s <= 2.5 * windows * INTERRUPTIBLE.seconds(1300)


def test_short_requests_are_answered_at_once_beside_a_flood_of_longer_ones():
    """They use .55 of the machine: more than an equal share. They took up to 12 s."""
    warm_up = [Request(float(number), SHORT, [250]) for number in range(10)]
    flood = [Request(10.1, SHORT, [600], 70.1, caller="flood") for _ in range(500)]
    short = [Request(10.7 + number, SHORT, [275], 70.7 + number) for number in range(58)]
    simulate([*warm_up, *flood, *short], EngineScheduler(INTERRUPTIBLE), INTERRUPTIBLE)
    assert max(request.latency_s for request in short) <= 1.1 * INTERRUPTIBLE.seconds(275)
    assert sum(request.in_time for request in flood) * INTERRUPTIBLE.seconds(600) >= 60 / 3
    assert not all(request.in_time for request in flood)


def test_flood_of_one_caller_keeps_no_place_from_another():
    """The flood takes the device until its deadlines, and a request of another caller is answered next all the same."""
    for caller in ("", "other"):
        flood = [Request(5.0, SHORT, [500], deadline_s=35.0) for _ in range(100)]
        request = Request(6.0, SHORT, [500], deadline_s=11.0, caller=caller)
        simulate([*flood, request], EngineScheduler(SLOW), SLOW)
        assert not all(request.in_time for request in flood)
        assert request.in_time is (caller == "other")


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.9), (1.2, 0.7), (4.0, 0.35)])
def test_most_requests_are_answered_in_time_whatever_the_load(load, least):
    """What is late takes no more of the device. By first come, first served, .02 are in time at four times the load."""
    assert share_in_time(load, SEED, n=400) >= least


def test_late_request_takes_no_more_of_the_device():
    late, after = Request(0.0, LONG, [2000] * 9, deadline_s=0.1), Request(0.05, LONG, [2000] * 9)
    simulate([late, after], EngineScheduler(DEVICE), DEVICE)
    assert not late.in_time
    assert late.ran <= 3
    assert after.ran == 9
