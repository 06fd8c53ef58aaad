"""SIGTERM and SIGKILL under load over gRPC and HTTP: what becomes of the calls, and whether the service comes back."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import grpc
import typer

from rerank.access.credentials import PLAIN
from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.open_loop import LoadReport, open_loop, poisson_arrivals
from scripts.load_test.requests import made_request, rerank_calls
from scripts.service import Service, free_port, running_service
from scripts.trials import http_calls
from scripts.trials.calls import Target
from scripts.trials.http_calls import HttpReference
from scripts.trials.options import Seed
from scripts.trials.references import Message, Reference, references, rerank_messages
from scripts.trials.table import counts, header, row

_MODELS = [{"name": "identity", "ranker": "identity"}, {"name": "pe-rank", "ranker": "pe-rank"}]
_RATE, _HTTP_RATE = 30.0, 15.0
#: The signal comes at a random moment of this part of the load, which goes on after it.
_SIGNAL_S, _LOAD_S = (0.3, 1.3), 2.0
#: Time for the calls in flight after SIGTERM: enough for all, or so little that some are in flight at its end.
_DRAINS_S = (30.0, 0.05)
#: Passages and their characters of a request that takes seconds, so that it is in flight at the end of a short drain.
_SLOW = (60, 2000)
#: Statuses that tell the caller to ask another replica, or later.
_CLEAN = {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}
_EXIT_S = 60.0


@dataclass
class RestartReport:
    """Ends of the calls of all rounds, and numbers of wrong ends, exits and starts."""

    rounds: int = 0
    grpc_statuses: Counter[str] = field(default_factory=Counter)
    http_ends: Counter[str] = field(default_factory=Counter)
    #: Rounds in which the process did not end with exit code 0, or that began with a wrong answer or none.
    bad_exits: int = 0
    bad_starts: int = 0

    @property
    def bad_calls(self) -> int:
        """Calls that ended neither rightly nor in a way that tells the caller to ask another replica, or later."""
        bad = [count for status, count in self.grpc_statuses.items() if status not in _CLEAN]
        return sum(bad) + sum(count for end, count in self.http_ends.items() if end not in http_calls.CLEAN)

    def row(self, name: str) -> str:
        ends = counts(self.grpc_statuses), counts(self.http_ends)
        return row(name, self.rounds, *ends, self.bad_calls, self.bad_exits, self.bad_starts)


HEADER = header("signal", "rounds", "gRPC calls", "HTTP calls", "bad ends", "bad exits", "bad starts")


@dataclass(frozen=True)
class _Known:
    """Requests over gRPC and HTTP with their answers."""

    over_grpc: Sequence[Reference]
    over_http: Sequence[HttpReference]


def kill(
    rounds: Annotated[int, typer.Option(help="Starts of the service for each signal.")] = 100,
    signals: Annotated[str, typer.Option(help="Signals, separated by commas.")] = "SIGTERM,SIGKILL",
    seed: Seed = 0,
) -> None:
    """Ends the service under load with SIGTERM and with SIGKILL, and starts it again at the same address."""
    print(HEADER)
    for name in signals.split(","):
        print(asyncio.run(_restarts(signal.Signals[name], rounds, seed)).row(name), flush=True)


async def _restarts(number: signal.Signals, rounds: int, seed: int) -> RestartReport:
    """Starts the service so many times at one address, and ends it under load with this signal."""
    report, draw = RestartReport(), random.Random(seed)
    http_address = f"127.0.0.1:{free_port()}"
    settings = {"models": _MODELS, "http": http_address, "listen": f"127.0.0.1:{free_port()}"}
    served = {model["name"] for model in _MODELS}
    requests = [each for each in rerank_messages(random.Random(seed)) if each.model in served]
    requests.append(made_request(random.Random(seed), "pe-rank", *_SLOW))
    known: _Known | None = None
    for _ in range(rounds):
        with running_service(settings | {"drain_s": draw.choice(_DRAINS_S)}) as service:
            known = known or await _known(service, http_address, requests)
            report.rounds += 1
            report.bad_starts += not await _answers_rightly(service, http_address, known, draw)
            over_grpc, over_http = await _loads_with_signal(service, http_address, number, known, draw)
            report.grpc_statuses += over_grpc.statuses
            report.http_ends += over_http.statuses
            code = await asyncio.to_thread(service.process.wait, _EXIT_S)
            report.bad_exits += number is signal.SIGTERM and code != 0
    return report


async def _known(service: Service, http_address: str, requests: Sequence[pb.RerankRequest]) -> _Known:
    over_http = http_calls.http_references(http_address, http_calls.http_requests(requests))
    return _Known(await _references(service, requests), await over_http)


async def _references(service: Service, requests: Sequence[Message]) -> list[Reference]:
    async with Target(service.address) as target:
        return await references(target.stub, requests)


async def _answers_rightly(service: Service, http_address: str, known: _Known, draw: random.Random) -> bool:
    """True if a known request gets its answer over gRPC, and another one over HTTP."""
    reference = draw.choice(known.over_grpc)
    try:
        (again,) = await _references(service, [reference.message])
    except grpc.aio.AioRpcError:
        return False
    over_http = await http_calls.answers_rightly(http_address, draw.choice(known.over_http))
    return over_http and reference.is_right(again.answer)


async def _loads_with_signal(
    service: Service, http_address: str, number: signal.Signals, known: _Known, draw: random.Random
) -> tuple[LoadReport, LoadReport]:
    """The calls over gRPC and over HTTP of a load during which the process gets the signal."""
    arrivals, http_arrivals = (poisson_arrivals(rate, _LOAD_S, draw) for rate in (_RATE, _HTTP_RATE))
    requests = [each.message for each in known.over_grpc if isinstance(each.message, pb.RerankRequest)]
    over_http = draw.sample(known.over_http, len(known.over_http))
    asyncio.get_running_loop().call_later(draw.uniform(*_SIGNAL_S), service.process.send_signal, number)
    async with (
        rerank_calls(service.address, PLAIN, requests, _EXIT_S) as call,
        http_calls.http_calls(http_address, over_http) as http_call,
    ):
        return await asyncio.gather(open_loop(call, arrivals, _LOAD_S), open_loop(http_call, http_arrivals, _LOAD_S))
