"""CPU time per request of a service with metrics and traces, as a ratio to one without them.

    python scripts/bench_telemetry.py

Three services with the model identity, each a process of its own, answer the same requests in turns. Spans are sent to
a collector in this process. CPU time, unlike latency, hardly depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from statistics import median
from typing import Annotated

import grpc
import psutil
import typer
from attacks.calls import Target
from attacks.server import Service, running_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from rerank.commands.run import run
from rerank.load_test.requests import made_request
from rerank.v1 import rerank_pb2 as pb

TELEMETRY: dict[str, dict[str, object]] = {
    "off": {},
    "metrics": {"metrics": "127.0.0.1:0"},
    "metrics and traces": {"metrics": "127.0.0.1:0", "traces": True},
}
HEADER = """| telemetry | CPU time per request (ms) | ratio to off | from | to |
| --- | ---: | ---: | ---: | ---: |"""
_TIMEOUT_S = 60.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class _Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OpenTelemetry collector that drops the spans."""

    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        return trace_service_pb2.ExportTraceServiceResponse()


@app.command()
def main(
    requests: Annotated[int, typer.Option(help="Requests to each service in a round.")] = 300,
    rounds: Annotated[int, typer.Option(help="Rounds, in each of which every service has its turn.")] = 7,
    passages: Annotated[int, typer.Option(help="Passages per request, of 300 characters.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = 0,
) -> None:
    """Print a Markdown table: the median over the rounds, and the least and the greatest ratio of a round."""
    message = made_request(random.Random(seed), "identity", passages, 300)
    with collector(), ExitStack() as stack:
        services = {name: stack.enter_context(running_service(settings(name))) for name in TELEMETRY}
        ms = asyncio.run(measured(services, message, requests, rounds))
    print(HEADER)
    for name in TELEMETRY:
        ratios = [own / off for own, off in zip(ms[name], ms["off"], strict=True)]
        cells = [f"{median(ms[name]):.2f}", *(f"{each:.2f}" for each in (median(ratios), min(ratios), max(ratios)))]
        print(f"| {name} | {' | '.join(cells)} |")


def settings(name: str) -> dict[str, object]:
    return {"models": [{"name": "identity", "ranker": "identity"}], "telemetry": TELEMETRY[name]}


@contextmanager
def collector() -> Iterator[None]:
    """Receives the spans of services that start in the block."""
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Collector(), server)
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


async def measured(
    services: dict[str, Service], message: pb.RerankRequest, requests: int, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of CPU time per request of each service in each round, after one round to warm up."""
    ms: dict[str, list[float]] = {name: [] for name in services}
    async with AsyncExitStack() as stack:
        targets = {name: await stack.enter_async_context(Target(each.address)) for name, each in services.items()}
        for _ in range(rounds + 1):
            for name, target in targets.items():
                before_s = cpu_s(services[name])
                for _ in range(requests):
                    assert await target.rerank(message, _TIMEOUT_S) == "OK"
                ms[name].append((cpu_s(services[name]) - before_s) / requests * 1000)
    return {name: values[1:] for name, values in ms.items()}


def cpu_s(service: Service) -> float:
    times = psutil.Process(service.pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    run(app)
