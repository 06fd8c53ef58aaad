"""Cancellation: how many batches of model work go on after a request was cancelled."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from rerank.load_test.requests import made_request
from rerank.v1 import rerank_pb2 as pb
from scripts.service import Service, running_service
from scripts.trials.calls import Target
from scripts.trials.options import Seed
from scripts.trials.table import header, row

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
        return row(model, self.cancelled, self.answered, after)


HEADER = header("model", "cancelled", "answered before", "requests with so many batches after their cancellation")


def cancel(
    requests: Annotated[int, typer.Option(help="Requests to cancel.")] = 500,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "pe-rank",
    passages: Annotated[int, typer.Option(help="Passages per request.")] = 40,
    seed: Seed = 0,
) -> None:
    """Cancels requests at random moments and counts the batches of model work that go on."""
    print(HEADER)
    print(asyncio.run(_cancel(model, requests, passages, seed)).row(model))


async def _cancel(model: str, requests: int, passages: int, seed: int) -> CancelReport:
    """Cancels requests to a model, one after the other, each at a random moment of the time that one takes."""
    draw, report = random.Random(seed), CancelReport()
    with running_service() as service:
        async with Target(service.address) as target:
            method = target.stub.Rerank
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
