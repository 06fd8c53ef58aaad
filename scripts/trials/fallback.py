"""Faults of a model under load of calls that ask for an answer in any case: how they end, and what the metrics say."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import grpc
import typer

from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.open_loop import Call, LoadReport, Outcome, open_loop, poisson_arrivals
from scripts.load_test.requests import made_request
from scripts.service import Service, free_port, running_service
from scripts.trials.calls import Target
from scripts.trials.options import Seed
from scripts.trials.table import counts, header, row

_RATE, _LOAD_S = 30.0, 3.0
#: The fault comes at a random moment of this part of the load.
_FAULT_S = (0.5, 2.0)
#: Deadline of each call, and how long before it the answer leaves, which on a busy machine may take so long to arrive.
_TIMEOUT_S = 2.0
_MARGIN: dict[str, Any] = {"engine": {"answer_margin_s": 0.5}}
_RANKED, _ERROR = "ranked", "error "

#: A running service, and what brings the fault about.
Faulty: TypeAlias = tuple[Service, Callable[[], object]]

HEADER = header("fault", "rounds", "answers", "errors", "slowest answer (ms)", "counted alike in the metrics")


def fallback(
    rounds: Annotated[int, typer.Option(help="Rounds of load for each fault.")] = 10,
    seed: Seed = 0,
) -> None:
    """Kills, stops and breaks a model under load of calls with a deadline and `on_failure: first_stage`."""
    print(HEADER)
    for name, faulty in _FAULTS.items():
        print(asyncio.run(_row(name, faulty, rounds, seed)), flush=True)


async def _row(name: str, faulty: Callable[[], Any], rounds: int, seed: int) -> str:
    draw, ends, latencies, counted = random.Random(seed), Counter[str](), list[float](), True
    for _ in range(rounds):
        with faulty() as (service, fail):
            load = await _load(service, fail, draw)
            failures = {end: n for end, n in load.statuses.items() if end != _RANKED and not end.startswith(_ERROR)}
            counted &= all(service.metric("rerank_fallbacks_total", reason=end) == n for end, n in failures.items())
        ends += load.statuses
        latencies += [call.latency_s for call in load.calls if not call.outcome.status.startswith(_ERROR)]
    errors = Counter({end: n for end, n in ends.items() if end.startswith(_ERROR)})
    slowest_ms = f"{max(latencies) * 1000:.0f}"
    return row(name, rounds, counts(ends - errors), counts(errors) or 0, slowest_ms, "yes" if counted else "no")


async def _load(service: Service, fail: Callable[[], object], draw: random.Random) -> LoadReport:
    """A load; the fault comes in its middle."""
    requests = [
        made_request(draw, "", n, 100, on_failure=pb.ON_FAILURE_FIRST_STAGE, strategy=pb.Strategy(window_size=5))
        for n in (2, 5, 20)
    ]
    async with _calls(service.address, requests) as call:
        await call(0)
        asyncio.get_running_loop().call_later(draw.uniform(*_FAULT_S), fail)
        return await open_loop(call, poisson_arrivals(_RATE, _LOAD_S, draw), _LOAD_S)


@asynccontextmanager
async def _calls(address: str, requests: Sequence[pb.RerankRequest]) -> AsyncIterator[Call]:
    """A function that sends the request of a number; its status is that of the ranking, its failure, or the error."""
    async with Target(address) as target:

        async def call(number: int) -> Outcome:
            try:
                reply = await target.stub.Rerank(requests[number % len(requests)], timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return Outcome(_ERROR + error.code().name)
            return Outcome(reply.execution.failure or _RANKED)

        yield call


@contextmanager
def _killed_server(send: signal.Signals) -> Iterator[Faulty]:
    """A service whose model is a rerank API, to which the fault sends a signal."""
    address = f"127.0.0.1:{free_port()}"
    identity = [{"name": "identity", "ranker": "identity"}]
    served_by = {"kind": "vllm", "urls": [f"http://{address}"], "model": "identity"}
    with (
        running_service({"models": identity, "http": {"listen": address}, "telemetry": {}}) as api,
        running_service({"models": [{"name": "api", "ranker": "api", "served_by": served_by}]} | _MARGIN) as service,
    ):
        yield service, lambda: api.process.send_signal(send)


@contextmanager
def _raising_model() -> Iterator[Faulty]:
    """A service with a model of its own whose passes all raise from the fault on."""
    with tempfile.TemporaryDirectory(prefix="rerank-trial-") as folder:
        fault = Path(folder) / "fault"
        program = ("-m", "scripts.trials.raising_model", str(fault))
        models = [{"name": "identity", "ranker": "identity"}]
        with running_service({"models": models} | _MARGIN, program=program) as service:
            yield service, fault.touch


_FAULTS: dict[str, Callable[[], Any]] = {
    "SIGKILL to the inference server": lambda: _killed_server(signal.SIGKILL),
    "SIGSTOP to the inference server": lambda: _killed_server(signal.SIGSTOP),
    "each pass of the model raises": _raising_model,
}
