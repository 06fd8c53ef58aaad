"""Cancellation: how many batches of model work go on after a request was cancelled."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
from attacks.server import Service, running_service

from rerank.load_test.requests import made_request
from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc

_METRIC = "rerank_batches_after_cancellation_total"
#: Windows of five passages make several batches of a request.
_STRATEGY = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=5, stride=3)
_WARM_UP = 5


@dataclass
class CancelReport:
    """Numbers of calls that were cancelled, that were answered first, and by batches of work after the cancellation."""

    cancelled: int = 0
    answered: int = 0
    batches_after: Counter[int] = field(default_factory=Counter)

    def row(self, model: str) -> str:
        after = ", ".join(f"{count} with {batches}" for batches, count in sorted(self.batches_after.items()))
        return f"| {model} | {self.cancelled} | {self.answered} | {after} |"


HEADER = """| model | cancelled | answered before | requests with so many batches after their cancellation |
| --- | ---: | ---: | --- |"""


async def cancel(model: str, requests: int, passages: int, seed: int) -> CancelReport:
    """Cancels requests to a model, one after the other, each at a random moment of the time that one takes."""
    draw, report = random.Random(seed), CancelReport()
    with running_service() as service:
        async with grpc.aio.insecure_channel(service.address) as channel:
            method: Any = rerank_pb2_grpc.RerankServiceStub(channel).Rerank
            message = made_request(draw, model, passages, 300, strategy=_STRATEGY)
            calm_s = min([await _seconds(method, message) for _ in range(_WARM_UP)])
            before = service.metric(_METRIC, model=model)
            for _ in range(requests):
                was_cancelled = await _cancelled(method, message, draw.uniform(0.0, calm_s))
                after = await _count_when_idle(service, method, made_request(draw, model, 1, 20))
                report.cancelled += was_cancelled
                report.answered += not was_cancelled
                report.batches_after[round(after - before)] += was_cancelled
                before = after
    return report


async def _seconds(method: Any, message: pb.RerankRequest) -> float:
    start_s = time.perf_counter()
    await method(message)
    return time.perf_counter() - start_s


async def _cancelled(method: Any, message: pb.RerankRequest, after_s: float) -> bool:
    """True if the call, cancelled after this time, ended by that and not with an answer."""
    call = method(message)
    await asyncio.sleep(after_s)
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return True
    return False


async def _count_when_idle(service: Service, method: Any, short: pb.RerankRequest) -> float:
    """The metric once the model's threads have ended what they did: they then answer a short request."""
    await method(short)
    return service.metric(_METRIC, model=short.model)
