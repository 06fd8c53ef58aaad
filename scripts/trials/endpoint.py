"""SIGKILL to a rerank API under load of a service whose model it is: how the calls end, and whether they go on."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import grpc
import typer

from rerank.access.credentials import PLAIN
from rerank.load_test.open_loop import open_loop, poisson_arrivals
from rerank.load_test.requests import made_request, rerank_calls
from rerank.v1 import rerank_pb2 as pb
from scripts.service import Service, free_port, running_service
from scripts.trials.calls import Target
from scripts.trials.options import Seed
from scripts.trials.references import Reference, call, references
from scripts.trials.table import counts, header, row

_MODEL = "api"
_RATE, _LOAD_S = 30.0, 2.0
#: The API is killed at a random moment of this part of the load.
_KILL_S = (0.3, 1.3)
#: Statuses that tell the caller to come again later.
_CLEAN = {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}
_TIMEOUT_S, _COMES_BACK_S = 60.0, 30.0


@dataclass
class EndpointReport:
    """Ends of the calls of all rounds, and the rounds after which a known request did not get its answer again."""

    rounds: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    lost: int = 0

    def row(self) -> str:
        bad = sum(number for status, number in self.statuses.items() if status not in _CLEAN)
        return row("SIGKILL to the API", self.rounds, counts(self.statuses), bad, self.lost)


HEADER = header("fault", "rounds", "calls of the service", "bad ends", "rounds without an answer later")


def endpoint(
    rounds: Annotated[int, typer.Option(help="Starts of the API.")] = 20,
    seed: Seed = 0,
) -> None:
    """Kills a rerank API under load of a service with `ranker: api`, and starts it again at the same address."""
    print(HEADER)
    print(asyncio.run(_kills(rounds, seed)).row(), flush=True)


async def _kills(rounds: int, seed: int) -> EndpointReport:
    report, draw = EndpointReport(), random.Random(seed)
    address, api_grpc_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
    api = _settings([{"name": "identity", "ranker": "identity"}], http=address) | {"listen": api_grpc_address}
    served_by = {"kind": "vllm", "urls": [f"http://{address}"], "model": "identity"}
    requests = [made_request(draw, _MODEL, n, 100) for n in (2, 5, 20)]
    known: list[Reference] = []
    with running_service(_settings([{"name": _MODEL, "ranker": "api", "served_by": served_by}])) as service:
        for _ in range(rounds):
            with running_service(api) as running:
                report.rounds += 1
                report.lost += not await _comes_back(service, known, requests)
                asyncio.get_running_loop().call_later(draw.uniform(*_KILL_S), running.process.kill)
                async with rerank_calls(service.address, PLAIN, requests, _TIMEOUT_S) as rerank:
                    load = await open_loop(rerank, poisson_arrivals(_RATE, _LOAD_S, draw), _LOAD_S)
                report.statuses += load.statuses
    return report


def _settings(models: list[dict[str, Any]], http: str | None = None) -> dict[str, Any]:
    return {"models": models, "telemetry": {}} | ({"http": {"listen": http}} if http else {})


async def _comes_back(service: Service, known: list[Reference], requests: list[pb.RerankRequest]) -> bool:
    """True if the service soon answers all requests again, and as the first time, which `known` keeps."""
    end_s = time.monotonic() + _COMES_BACK_S
    async with Target(service.address) as target:
        while time.monotonic() < end_s:
            try:
                known += await references(target.stub, requests) if not known else []
                return all([each.is_right(await call(target.stub, each.message)) for each in known])
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)
    return False
