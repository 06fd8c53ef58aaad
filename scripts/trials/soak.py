"""Soak: hours of mixed traffic with clients that vanish; every answer is compared with its reference."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from attacks.server import Service, running_service

from rerank.v1 import rerank_pb2_grpc
from trials.index import trial_index
from trials.references import Reference, Stub, call, references, rerank_messages, search_messages

#: Shares of the clients that go on until their answer; that cancel; that have 50 ms; whose connection breaks.
_BEHAVIOURS = {"patient": 80, "cancelling": 10, "hasty": 5, "vanishing": 5}
_SAMPLE_S = 10.0
#: The first minutes fill caches and thread pools; growth counts from their end.
_WARM_UP_S = 120.0


@dataclass
class SoakState:
    """What the runs of a soak have in common: how far it is, what calls ended in, and samples of the process."""

    seconds: float = 0.0
    runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    #: Of each run: [seconds, resident MB, open files, threads] at the end of the warm-up, and at its end.
    samples: list[list[list[float]]] = field(default_factory=list)

    def report(self) -> str:
        """What the soak has shown so far, in lines."""
        lines = [
            f"{self.seconds:.0f} s in {self.runs} runs: {self.outcomes.total()} calls, {self.wrong} wrong answers",
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())),
        ]
        for number, samples in enumerate(self.samples, start=1):
            (_, *first), (seconds, *last) = samples[0], samples[-1]
            most = [max(sample[place] for sample in samples) for place in (1, 2, 3)]
            names = "resident MB", "open files", "threads"
            rows = zip(names, first, last, most, strict=True)
            text = "; ".join(f"{name} {a:.0f} → {b:.0f}, at most {c:.0f}" for name, a, b, c in rows)
            lines.append(f"run {number}, {seconds:.0f} s: {text}")
        return "\n".join(lines)


async def soak(work: Path, seconds: float, rate: float, seed: int) -> SoakState:
    """Sends `rate` requests per second for so many seconds and adds what happened to the soak in the folder `work`.

    An earlier soak in the same folder goes on with a fresh process of the service, and with further random draws.
    """
    file = work / "soak.json"
    state = SoakState(**json.loads(file.read_text())) if file.is_file() else SoakState()
    state.outcomes, draw = Counter(state.outcomes), random.Random(f"{seed} {state.runs}")
    state.runs += 1
    before_s = state.seconds
    with running_service({"index": str(trial_index(work)), "telemetry": {"metrics": "127.0.0.1:0"}}) as service:
        async with grpc.aio.insecure_channel(service.address) as channel:
            stub = rerank_pb2_grpc.RerankServiceStub(channel)
            texts = random.Random(seed)
            known = await references(stub, [*rerank_messages(texts), *search_messages(texts)])
            samples: list[list[float]] = []
            state.samples.append(samples)
            start_s, tasks = time.monotonic(), set[asyncio.Task[None]]()
            sampled_s = start_s
            while (now_s := time.monotonic()) < start_s + seconds:
                task = asyncio.create_task(_client(service.address, stub, draw.choice(known), draw, state))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                if now_s >= sampled_s + _SAMPLE_S:
                    sampled_s, state.seconds = now_s, before_s + now_s - start_s
                    if now_s >= start_s + min(_WARM_UP_S, seconds / 10):
                        samples.append([now_s - start_s, *_process(service)])
                        _save(file, state)
                await asyncio.sleep(draw.expovariate(rate))
            await asyncio.gather(*tasks)
            samples.append([time.monotonic() - start_s, *_process(service)])
    state.seconds = before_s + seconds
    _save(file, state)
    return state


async def _client(
    address: str,
    stub: Stub,
    reference: Reference,
    draw: random.Random,
    state: SoakState,
) -> None:
    """One client: asks for a reference, behaves as drawn, and counts how its call ended."""
    (behaviour,) = draw.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))
    patience_s = draw.expovariate(20.0)
    try:
        if behaviour == "vanishing":
            await _vanish(address, reference, patience_s)
            state.outcomes["vanishing"] += 1
            return
        pending = asyncio.ensure_future(call(stub, reference.message, 0.05 if behaviour == "hasty" else 120.0))
        if behaviour == "cancelling":
            asyncio.get_running_loop().call_later(patience_s, pending.cancel)
        state.wrong += not reference.is_right(await pending)
        state.outcomes[f"{behaviour} OK"] += 1
    except grpc.aio.AioRpcError as error:
        state.outcomes[f"{behaviour} {error.code().name}"] += 1
    except asyncio.CancelledError:
        state.outcomes[f"{behaviour} CANCELLED"] += 1


async def _vanish(address: str, reference: Reference, after_s: float) -> None:
    """Starts a call on a connection of its own, and closes the connection without waiting for the answer."""
    channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    pending = asyncio.ensure_future(call(rerank_pb2_grpc.RerankServiceStub(channel), reference.message))
    await asyncio.sleep(after_s)
    await channel.close()
    await asyncio.gather(pending, return_exceptions=True)


def _process(service: Service) -> list[float]:
    return [service.resident_mb(), service.open_files(), service.threads()]


def _save(file: Path, state: SoakState) -> None:
    file.write_text(json.dumps(vars(state)), encoding="utf-8")
