"""Longest pieces of work on the event loop of a service during an attack, in milliseconds of CPU time.

    python scripts/event_loop_pieces.py --attack large-requests

While a piece runs, no other call is served. CPU time of the thread, unlike latency, hardly depends on what else the
machine does. The service runs in this process with the model identity; an attack of scripts/attack.py, in another.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from attacks.registry import run_attack
from attacks.server import free_port

from rerank.commands.run import run
from rerank.config import ServiceConfig, load_config
from rerank.grpc.server import serve

_BOUND_MS = 5.0
_SHOWN = 5

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    attack: Annotated[str, typer.Option(help="Name of an attack of scripts/attack.py.")] = "large-requests",
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = 0,
) -> None:
    """Print how many pieces of work were longer than 5 ms, and the longest ones."""
    with recorded_pieces() as pieces_ms:
        outcome = asyncio.run(attacked(attack, seed, pieces_ms.clear))
    pieces_ms.sort(reverse=True)
    longest = ", ".join(f"{piece:.1f}" for piece in pieces_ms[:_SHOWN])
    over = sum(piece > _BOUND_MS for piece in pieces_ms)
    print(f"{attack}: {outcome}; {over} of {len(pieces_ms)} pieces over {_BOUND_MS:g} ms, the longest: {longest} ms")


@contextmanager
def recorded_pieces() -> Iterator[list[float]]:
    """The CPU time of every callback of event loops that runs in the block, in milliseconds."""
    original: Any = asyncio.Handle._run
    pieces_ms: list[float] = []

    def timed(handle: asyncio.Handle) -> None:
        start_s = time.thread_time()
        original(handle)
        pieces_ms.append((time.thread_time() - start_s) * 1000)

    handles: Any = asyncio.Handle
    handles._run = timed
    try:
        yield pieces_ms
    finally:
        handles._run = original


async def attacked(attack: str, seed: int, on_start: Callable[[], None]) -> str:
    """Serves on a free port, calls `on_start`, attacks, and stops. Returns the outcomes of the attack's calls."""
    models, http = [{"name": "identity", "ranker": "identity"}], f"127.0.0.1:{free_port()}"
    config = load_config(None, models=models, listen="127.0.0.1:0", http=http, device="cpu")
    loop = asyncio.get_running_loop()
    address: asyncio.Future[str] = loop.create_future()

    def read_config() -> ServiceConfig:
        return config

    serving = asyncio.create_task(serve(config, address.set_result, read_config))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker:
        target = await address
        on_start()
        calls = await loop.run_in_executor(attacker, run_attack, attack, target, http, None, seed)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(calls.items()))


if __name__ == "__main__":
    run(app)
