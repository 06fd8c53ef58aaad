"""SIGTERM and SIGKILL under load: what becomes of the calls, and whether the service comes back."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
from attacks.server import Service, free_port, running_service

from rerank.service.credentials import PLAIN
from rerank.service.load import LoadReport, open_loop, poisson_arrivals
from rerank.service.load_requests import rerank_calls
from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc
from trials.references import Message, Reference, references, rerank_messages

_MODELS = [{"name": "identity", "ranker": "identity"}, {"name": "pe-rank", "ranker": "pe-rank"}]
_RATE = 30.0
#: The signal comes at a random moment of this part of the load, which goes on after it.
_SIGNAL_S, _LOAD_S = (0.3, 1.3), 2.0
#: Statuses that tell the caller to ask another replica.
_CLEAN = {"OK", "UNAVAILABLE"}
_EXIT_S = 60.0


@dataclass
class RestartReport:
    """Statuses of the calls of all rounds, and numbers of wrong statuses, exits and starts."""

    rounds: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    #: Calls that ended in another status than OK or UNAVAILABLE.
    lost: int = 0
    #: Rounds in which the process did not end with exit code 0, or that began with a wrong answer or none.
    bad_exits: int = 0
    bad_starts: int = 0

    def row(self, name: str) -> str:
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        return f"| {name} | {self.rounds} | {statuses} | {self.lost} | {self.bad_exits} | {self.bad_starts} |"


HEADER = """| signal | rounds | calls | other statuses | bad exits | bad starts |
| --- | ---: | --- | ---: | ---: | ---: |"""


async def restarts(number: signal.Signals, rounds: int, seed: int) -> RestartReport:
    """Starts the service so many times at one address, and ends it under load with this signal."""
    report, draw = RestartReport(), random.Random(seed)
    settings = {"listen": f"127.0.0.1:{free_port()}", "models": _MODELS, "telemetry": {}}
    requests = [each for each in rerank_messages(random.Random(seed)) if each.model != "first"]
    known: list[Reference] = []
    for _ in range(rounds):
        with running_service(settings) as service:
            known = known or await _references(service, requests)
            report.rounds += 1
            report.bad_starts += not await _answers_rightly(service, draw.choice(known))
            load = await _load_with_signal(service, number, requests, draw)
            report.statuses += load.statuses
            report.lost += sum(count for status, count in load.statuses.items() if status not in _CLEAN)
            code = await asyncio.to_thread(service.process.wait, _EXIT_S)
            report.bad_exits += number is signal.SIGTERM and code != 0
    return report


async def _references(service: Service, requests: Sequence[Message]) -> list[Reference]:
    async with grpc.aio.insecure_channel(service.address) as channel:
        return await references(rerank_pb2_grpc.RerankServiceStub(channel), requests)


async def _answers_rightly(service: Service, reference: Reference) -> bool:
    try:
        (again,) = await _references(service, [reference.message])
    except grpc.aio.AioRpcError:
        return False
    return reference.is_right(again.answer)


async def _load_with_signal(
    service: Service, number: signal.Signals, requests: list[pb.RerankRequest], draw: random.Random
) -> LoadReport:
    """The calls of a load during which the process gets the signal."""
    arrivals = poisson_arrivals(_RATE, _LOAD_S, draw)
    asyncio.get_running_loop().call_later(draw.uniform(*_SIGNAL_S), service.process.send_signal, number)
    async with rerank_calls(service.address, PLAIN, requests, _EXIT_S) as call:
        return await open_loop(call, arrivals, _LOAD_S)
