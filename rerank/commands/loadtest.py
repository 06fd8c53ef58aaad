"""`rerank loadtest`: an open-loop load test of a running service."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from rerank.commands import options
from rerank.commands.query import DEFAULT_TARGET
from rerank.commands.run import console
from rerank.errors import ConfigError

if TYPE_CHECKING:
    from rerank.load_test.open_loop import Call, LoadReport
    from rerank.v1 import rerank_pb2 as pb

_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
#: "20" requests per second, or "2x" the measured capacity.
_RATE = re.compile(r"(\d+(?:\.\d+)?)(x?)")
_CAPACITY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestSettings:
    """Settings of `rerank loadtest`."""

    target: options.Target = DEFAULT_TARGET
    rate: Annotated[
        str, typer.Option(help="Requests per second, such as 20; or 2x: twice the capacity, which is measured first.")
    ] = "1x"
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the load.")] = 30.0
    deadline_s: Annotated[
        float | None, typer.Option(min=0.001, help="Deadline of each request in seconds; default: none.")
    ] = None
    requests: Annotated[
        Path | None, typer.Option(help="RankLLM JSONL file of the requests; default: requests of random words.")
    ] = None
    model: options.ModelName = ""
    passages: Annotated[int, typer.Option(min=1, help="Passages per request of random words.")] = 20
    passage_chars: Annotated[int, typer.Option(min=1, help="Characters per passage of random words.")] = 300
    callers: Annotated[int, typer.Option(min=1, help="Callers of the closed loop that measures the capacity.")] = 16
    seed: Annotated[int, typer.Option(help="Seed of the arrivals and of the random words.")] = 0
    tls_ca: options.TLSCA = None
    as_json: Annotated[bool, options.flag("--json", "Print the figures as JSON, for programs.")] = False


def loadtest(settings: LoadTestSettings) -> None:
    """Send requests at random times; print latencies and statuses.

    They arrive as a Poisson process, whether or not earlier ones were answered.
    Latencies count from the intended start of a request. Goodput is the number of answered requests per second.
    """
    rate = _RATE.fullmatch(settings.rate)
    if rate is None or not float(rate[1]):
        raise ConfigError(f"--rate {settings.rate}: give requests per second, such as 20, or 2x the capacity")
    capacity, report = asyncio.run(_run(settings, float(rate[1]), bool(rate[2])))
    figures = _figures(capacity, report)
    if settings.as_json:
        print(json.dumps(figures))
    else:
        console.print(_table(figures))


async def _run(settings: LoadTestSettings, rate: float, is_multiple: bool) -> tuple[float | None, LoadReport]:
    """The capacity in requests per second, if `rate` is a multiple of it, and the report of the load."""
    from rerank.access.credentials import Credentials
    from rerank.load_test.open_loop import capacity, open_loop, poisson_arrivals
    from rerank.load_test.requests import rerank_calls

    messages, measured = _messages(settings), None
    credentials = Credentials.from_environment(settings.tls_ca)
    if is_multiple:
        async with rerank_calls(settings.target, credentials, messages, timeout_s=None) as call:
            await _check_answer(call, settings.target)
            measured = await capacity(call, settings.callers, _CAPACITY_S)
    arrivals = poisson_arrivals(rate * (measured or 1.0), settings.seconds, random.Random(settings.seed))
    async with rerank_calls(settings.target, credentials, messages, settings.deadline_s) as call:
        return measured, await open_loop(call, arrivals, settings.seconds)


async def _check_answer(call: Call, target: str) -> None:
    """Raises: ConfigError if the service does not answer such a request at all."""
    status = (await call(0)).status
    if status != "OK":
        raise ConfigError(f"{target} answers {status} to a request without load; its capacity cannot be measured")


def _messages(settings: LoadTestSettings) -> list[pb.RerankRequest]:
    from rerank.load_test.requests import made_request, requests_from_file

    if settings.requests is not None:
        messages = requests_from_file(settings.requests, settings.model)
        if not messages:
            raise ConfigError(f"--requests {settings.requests}: the file has no request")
        return messages
    draw = random.Random(settings.seed)
    return [made_request(draw, settings.model, settings.passages, settings.passage_chars) for _ in range(100)]


def _figures(capacity: float | None, report: LoadReport) -> dict[str, Any]:
    percentiles = _PERCENTILES if report.statuses["OK"] else ()
    return {
        "capacity_per_s": capacity,
        "offered_per_s": len(report.calls) / report.seconds,
        "goodput_per_s": report.goodput,
        "statuses": dict(report.statuses),
        "refusals_without_retry_info": report.refusals_without_retry_info,
        "latency_ms": {f"p{percent:g}": report.percentile_ms(percent) for percent in percentiles},
    }


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title="load test", title_justify="left", show_header=False)
    if figures["capacity_per_s"] is not None:
        table.add_row("capacity", f"{figures['capacity_per_s']:.1f} requests/s")
    table.add_row("offered", f"{figures['offered_per_s']:.1f} requests/s")
    table.add_row("goodput", f"{figures['goodput_per_s']:.1f} requests/s")
    for status, count in sorted(figures["statuses"].items()):
        table.add_row(status, str(count))
    for name, latency_ms in figures["latency_ms"].items():
        table.add_row(f"{name} of answers", f"{latency_ms:.1f} ms")
    return table
