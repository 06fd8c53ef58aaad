"""Throughput and latency of `rerank serve` beside Ray Serve with one and with two replicas of one core each.

    python scripts/bench_ray.py

Callers that each ask again as soon as they have an answer send requests of random words, to one system after the other,
in several rounds. Callers, proxy and replicas share the machine: two replicas need two cores of their own to be twice
as fast. The latency is that of one caller alone. The processor time per request is that of all processes of a system,
with what Ray does in the background. With `--model identity` all of that is the cost of the transport.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated

import psutil
import typer

from rerank.access.credentials import Credentials
from rerank.commands.run import run
from rerank.config import IdentityModel, PERankModel, ServiceConfig
from rerank.load_test.open_loop import capacity
from rerank.load_test.requests import made_request, rerank_calls
from rerank.service.process import service_process
from rerank.v1 import rerank_pb2 as pb

_PORT = 50071
_REQUESTS = 100
_ALONE = 20
_WARM_UP_S = 3.0
_MODELS = (PERankModel(name="pe-rank", ranker="pe-rank"), IdentityModel(name="identity", ranker="identity"))

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement of one system.

    Attributes:
        rate: answered requests per second.
        cpu_ms: processor time of its processes per answered request, in milliseconds.
        alone_ms: median latency of one caller in milliseconds.
    """

    rate: float
    cpu_ms: float
    alone_ms: float

    def __str__(self) -> str:
        return f"| {self.rate:.1f} | {self.cpu_ms:.1f} | {self.alone_ms:.1f}"


@app.command()
def main(
    callers: Annotated[int, typer.Option(min=1, help="Callers of the closed loop.")] = 16,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each measurement.")] = 15.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each system.")] = 2,
    model: Annotated[str, typer.Option(help="Name of the model: pe-rank or identity.")] = "pe-rank",
    passages: Annotated[int, typer.Option(min=1, help="Passages per request.")] = 20,
) -> None:
    """Print a row per system and round, and the ratio of its median throughput to that of `rerank serve`."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started here
    draw = random.Random(0)
    requests = [made_request(draw, model, passages, 300) for _ in range(_REQUESTS)]
    systems: dict[str, Callable[[], AbstractContextManager[str]]] = {
        "rerank serve": partial(service_process, ServiceConfig(listen="127.0.0.1:0", models=_MODELS)),
        "Ray Serve, 1 replica": partial(_on_ray, 1),
        "Ray Serve, 2 replicas": partial(_on_ray, 2),
    }
    print("| System | Round | Requests/s | Processor ms per request | p50 of one caller, ms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    found: dict[str, list[Measured]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, started in systems.items():
            with started() as address:
                measured = asyncio.run(_measure(address, requests, callers, seconds))
            found[name].append(measured)
            print(f"| {name} | {number + 1} {measured} |", flush=True)
    base = median(each.rate for each in found["rerank serve"])
    for name, measurements in found.items():
        print(f"{name}: {median(each.rate for each in measurements) / base:.2f} times `rerank serve`")


@contextmanager
def _on_ray(replicas: int) -> Iterator[str]:
    """Starts Ray with so many replicas of one core, and yields the address of its proxy."""
    import ray
    from ray import serve

    from rerank.ray_serve.application import Scale, connect, deploy

    # As many logical cores as replicas, so that it also starts on one core.
    connect(None, num_cpus=replicas, log_to_driver=False)
    try:
        deploy(ServiceConfig(listen=f"[::]:{_PORT}", insecure=True, models=_MODELS), Scale(replicas))
        yield f"127.0.0.1:{_PORT}"
    finally:
        serve.shutdown()
        ray.shutdown()


async def _measure(address: str, requests: Sequence[pb.RerankRequest], callers: int, seconds: float) -> Measured:
    async with rerank_calls(address, Credentials(), requests, timeout_s=None) as call:
        await capacity(call, callers, _WARM_UP_S)
        latencies_s = []
        for number in range(_ALONE):
            start_s = time.perf_counter()
            await call(number)
            latencies_s.append(time.perf_counter() - start_s)
        start_s, start_cpu_s = time.perf_counter(), _cpu_s()
        rate = await capacity(call, callers, seconds)
        answered = rate * (time.perf_counter() - start_s)
        return Measured(rate, (_cpu_s() - start_cpu_s) / answered * 1000, median(latencies_s) * 1000)


def _cpu_s() -> float:
    """Processor time of the processes that this one started, in seconds."""
    times = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    run(app)
