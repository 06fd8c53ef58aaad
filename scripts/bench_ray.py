"""Throughput and latency of `rerank serve` beside Ray Serve with one and with two replicas of one core each.

    OMP_NUM_THREADS=1 python scripts/bench_ray.py

Callers that each ask again as soon as they have an answer send requests of random words, to one system after the other,
in several rounds. Callers, proxy and replicas share the machine: two replicas need two cores of their own to be twice
as fast. The latency is that of one caller alone, so that its difference is what Ray Serve adds to a call.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import median
from typing import Annotated

import typer

from rerank.commands.run import run
from rerank.config import PERankModel, ServiceConfig
from rerank.service.credentials import Credentials
from rerank.service.load import capacity
from rerank.service.load_requests import made_request, rerank_calls
from rerank.service.process import service_process
from rerank.v1 import rerank_pb2 as pb

_PORT = 50071
_REQUESTS = 100
_ALONE = 30
_MODEL = PERankModel(name="pe-rank", ranker="pe-rank")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    callers: Annotated[int, typer.Option(min=1, help="Callers of the closed loop.")] = 16,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each measurement.")] = 15.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each system.")] = 2,
    passages: Annotated[int, typer.Option(min=1, help="Passages per request.")] = 20,
) -> None:
    """Print a row per system and round, and the ratio of its median throughput to that of `rerank serve`."""
    draw = random.Random(0)
    requests = [made_request(draw, _MODEL.name, passages, 300) for _ in range(_REQUESTS)]
    systems: dict[str, Callable[[], AbstractContextManager[str]]] = {
        "rerank serve": partial(service_process, ServiceConfig(listen="127.0.0.1:0", models=(_MODEL,))),
        "Ray Serve, 1 replica": partial(_on_ray, 1),
        "Ray Serve, 2 replicas": partial(_on_ray, 2),
    }
    print("| System | Round | Requests/s | p50 of one caller, ms |\n| --- | ---: | ---: | ---: |")
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, started in systems.items():
            with started() as address:
                rate, alone_ms = asyncio.run(_measure(address, requests, callers, seconds))
            rates[name].append(rate)
            print(f"| {name} | {number + 1} | {rate:.1f} | {alone_ms:.1f} |", flush=True)
    base = median(rates["rerank serve"])
    print(*(f"{name}: {median(found) / base:.2f} times `rerank serve`" for name, found in rates.items()), sep="\n")


@contextmanager
def _on_ray(replicas: int) -> Iterator[str]:
    """Starts Ray with so many replicas of one core, and yields the address of its proxy."""
    import ray
    from ray import serve

    from rerank.ray_serve.application import Scale, connect, deploy

    # As many logical cores as replicas, so that it also starts on one core.
    connect(None, num_cpus=replicas, log_to_driver=False)
    try:
        deploy(ServiceConfig(listen=f"[::]:{_PORT}", insecure=True, models=(_MODEL,)), Scale(replicas))
        yield f"127.0.0.1:{_PORT}"
    finally:
        serve.shutdown()
        ray.shutdown()


async def _measure(
    address: str, requests: Sequence[pb.RerankRequest], callers: int, seconds: float
) -> tuple[float, float]:
    """Answered requests per second, and the median latency of one caller in milliseconds."""
    async with rerank_calls(address, Credentials(), requests, timeout_s=None) as call:
        await capacity(call, callers, 3.0)  # warm-up
        latencies_s = []
        for number in range(_ALONE):
            start_s = time.perf_counter()
            await call(number)
            latencies_s.append(time.perf_counter() - start_s)
        return await capacity(call, callers, seconds), median(latencies_s) * 1000


if __name__ == "__main__":
    run(app)
