"""Soak: hours of mixed traffic with clients that vanish; every answer is compared with its reference."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import grpc
import typer

from scripts.load_test.open_loop import Outcome, open_loop, poisson_arrivals
from scripts.service import Service, running_service
from scripts.trials.calls import Target
from scripts.trials.index import trial_index
from scripts.trials.options import WORK, Seed, Work
from scripts.trials.references import Reference, Stub, call, references, rerank_messages, search_messages
from scripts.trials.table import counts

#: Shares of the clients that go on until their answer; that cancel; that have 50 ms; whose connection breaks.
_BEHAVIOURS = {"patient": 80, "cancelling": 10, "hasty": 5, "vanishing": 5}
_HASTY_S, _PATIENT_S = 0.05, 120.0
_SAMPLE_S = 10.0
#: The first minutes fill caches and thread pools; growth counts from their end.
_WARM_UP_S = 120.0


@dataclass
class SoakState:
    """Progress of a soak over several runs: its duration, outcomes of calls, and samples of the process."""

    seconds: float = 0.0
    runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    #: Of each run: [seconds, resident MB, open files, threads] every ten seconds after the warm-up.
    samples: list[list[list[float]]] = field(default_factory=list)

    def report(self) -> str:
        """The result so far: calls, their outcomes, and memory, files and threads of each run."""
        lines = [
            f"{self.seconds:.0f} s in {self.runs} runs: {self.outcomes.total()} calls, {self.wrong} wrong answers",
            counts(self.outcomes),
        ]
        for number, samples in enumerate(self.samples, start=1):
            if not samples:  # the run was ended during the warm-up
                continue
            (_, *first), (seconds, *last) = samples[0], samples[-1]
            most = [max(sample[place] for sample in samples) for place in (1, 2, 3)]
            names = "resident MB", "open files", "threads"
            rows = zip(names, first, last, most, strict=True)
            text = "; ".join(f"{name} {a:.0f} → {b:.0f}, at most {c:.0f}" for name, a, b, c in rows)
            lines.append(f"run {number}, {seconds:.0f} s: {text}")
        return "\n".join(lines)


def soak(
    seconds: Annotated[float, typer.Option(help="Length of this run.")] = 3600.0,
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 4.0,
    work: Work = WORK,
    seed: Seed = 0,
) -> None:
    """Mixed traffic with clients that vanish; a further run in the same folder continues it."""
    print(asyncio.run(_soak(work, seconds, rate, seed)).report())


async def _soak(work: Path, seconds: float, rate: float, seed: int) -> SoakState:
    """Sends `rate` requests per second for so many seconds and adds what happened to the soak in the folder `work`.

    An earlier soak in the same folder goes on with a fresh process of the service, and with further random draws.
    """
    file = work / "soak.json"
    state = SoakState(**json.loads(file.read_text())) if file.is_file() else SoakState()
    state.outcomes, draw, texts = Counter(state.outcomes), random.Random(f"{seed} {state.runs}"), random.Random(seed)
    before_s, state.runs = state.seconds, state.runs + 1
    state.samples.append([])
    with running_service({"index": str(trial_index(work))}) as service:
        async with Target(service.address) as target:
            known = await references(target.stub, [*rerank_messages(texts), *search_messages(texts)])
            clients = _Clients(service.address, target.stub, known, draw, state)
            sampling = asyncio.create_task(_sample(service, state, seconds, file))
            await open_loop(clients.ask, poisson_arrivals(rate, seconds, draw), seconds)
            sampling.cancel()
    state.seconds = before_s + seconds
    _save(file, state)
    return state


async def _sample(service: Service, state: SoakState, seconds: float, file: Path) -> None:
    """Adds a sample of the process every ten seconds from the end of the warm-up on, and saves the state."""
    start_s, before_s = time.monotonic(), state.seconds
    every_s = min(_SAMPLE_S, seconds / 4)
    while True:
        await asyncio.sleep(every_s)
        run_s = time.monotonic() - start_s
        state.seconds = before_s + min(run_s, seconds)
        if run_s >= min(_WARM_UP_S, seconds / 10):
            process = service.statistics
            state.samples[-1].append([run_s, service.resident_mb(), process.num_fds(), process.num_threads()])
        _save(file, state)


@dataclass(frozen=True)
class _Clients:
    """Clients of the service at an address. Each asks for one of the references and behaves as drawn."""

    address: str
    stub: Stub
    known: Sequence[Reference]
    draw: random.Random
    state: SoakState

    async def ask(self, _: int) -> Outcome:
        """Asks for a reference, and counts how the call ended."""
        end = await self._end_of_call(self.draw.choice(self.known))
        self.state.outcomes[end] += 1
        return Outcome(end)

    async def _end_of_call(self, reference: Reference) -> str:
        (behaviour,) = self.draw.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))
        patience_s = self.draw.expovariate(20.0)
        if behaviour == "vanishing":
            await _vanish(self.address, reference, patience_s)
            return behaviour
        timeout_s = _HASTY_S if behaviour == "hasty" else _PATIENT_S
        pending = asyncio.ensure_future(call(self.stub, reference.message, timeout_s))
        if behaviour == "cancelling":
            asyncio.get_running_loop().call_later(patience_s, pending.cancel)
        try:
            answer = await pending
        except grpc.aio.AioRpcError as error:
            return f"{behaviour} {error.code().name}"
        except asyncio.CancelledError:
            return f"{behaviour} CANCELLED"
        self.state.wrong += not reference.is_right(answer)
        return f"{behaviour} OK"


async def _vanish(address: str, reference: Reference, after_s: float) -> None:
    """Starts a call on a connection of its own, and closes the connection without waiting for the answer."""
    async with Target(address) as target:
        pending = asyncio.ensure_future(call(target.stub, reference.message))
        await asyncio.sleep(after_s)
    await asyncio.gather(pending, return_exceptions=True)


def _save(file: Path, state: SoakState) -> None:
    file.write_text(json.dumps(vars(state)), encoding="utf-8")
