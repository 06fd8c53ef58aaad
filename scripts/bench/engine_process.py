"""An engine in a process of its own, and the processor time and memory of the process that computes for it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from rerank.config import EngineConfig, FirstModel
from rerank.engine.engine import Engine
from rerank.engine.request import RankRequest
from rerank.errors import ConfigError
from rerank.reranking.registry import load_first, load_served

#: The model of every request here, whatever the system.
MODEL = "first"


@dataclass(frozen=True)
class Pass:
    """A pass over some windows: its tokens, its seconds, the latency of each window, and their scores."""

    tokens: int
    elapsed_s: float
    cpu_s: float
    latencies_s: Sequence[float]
    scores: Sequence[Sequence[float]]


class EngineProcess:
    """An engine with one model, in a process of its own, which ranks windows.

    Args:
        model: FIRST, named MODEL. With `served_by`, the processor time and the memory are those of the server, which
            runs on this machine.
        core: the only core on which the process runs if it computes itself; None: any.

    Raises:
        CheckpointError: the checkpoint of the model cannot be loaded.
        ConfigError: nothing listens at the address of the server.
    """

    def __init__(self, model: FirstModel, core: int | None) -> None:
        self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._computing = self._executor.submit(_start, model, core).result()

    def rank(self, windows: Sequence[RankRequest], at_once: int) -> Pass:
        """A pass over windows, so many of them at a time."""
        return self._executor.submit(_rank, windows, at_once).result()

    def peak_mb(self) -> float:
        """The most memory (MB) that the computing processes have held so far, each for itself."""
        return sum(_peak_mb(process.pid) for process in _with_children(self._computing))

    def close(self) -> None:
        self._executor.submit(_stop).result()
        self._executor.shutdown()


def listening_on(url: str) -> int:
    """The id of the process that listens at an address of this machine. Raises: ConfigError if there is none."""
    port = urlsplit(url).port
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid is not None:
            return int(each.pid)
    raise ConfigError(f"no process of this machine that may be inspected listens at {url}; start the server first")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process and its children have used."""
    times = [process.cpu_times() for process in _with_children(pid)]
    return float(sum(each.user + each.system for each in times))


def _with_children(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _peak_mb(pid: int) -> float:
    """The largest resident set of a process, as Linux counts it."""
    kib = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    return int(kib[1]) * 1024 / 1e6 if kib else 0.0


@dataclass(frozen=True)
class _Running:
    """State of the child process between two calls."""

    loop: asyncio.Runner
    engine: Engine
    computing: int


_running: _Running | None = None


def _start(model: FirstModel, core: int | None) -> int:
    """Starts the engine in this process, and returns the id of the process that computes."""
    global _running
    if core is not None and model.served_by is None:
        os.sched_setaffinity(0, {core})
    ranker = load_served(model) if model.served_by else load_first(model, "cpu")
    computing = listening_on(model.served_by.urls[0]) if model.served_by else os.getpid()
    _running = _Running(asyncio.Runner(), Engine({MODEL: ranker}, EngineConfig()), computing)
    _running.loop.run(_running.engine.__aenter__())
    return computing


def _rank(windows: Sequence[RankRequest], at_once: int) -> Pass:
    if _running is None:
        raise RuntimeError("the engine was not started; this is a bug")
    return _running.loop.run(_rank_in(_running, windows, at_once))


def _stop() -> None:
    """Stops the engine, whose threads would keep the process."""
    if _running is not None:
        _running.loop.run(_running.engine.__aexit__(None, None, None))
        _running.loop.close()


async def _rank_in(running: _Running, windows: Sequence[RankRequest], at_once: int) -> Pass:
    free = asyncio.Semaphore(at_once)

    async def ranked(request: RankRequest) -> tuple[float, int, Sequence[float]]:
        async with free:
            start_s = time.perf_counter()
            ranking = await running.engine.run(request)
            return time.perf_counter() - start_s, ranking.trace.tokens, ranking.trace.windows[0].scores

    start_s, start_cpu_s = time.perf_counter(), cpu_s(running.computing)
    latencies_s, tokens, scores = zip(*await asyncio.gather(*map(ranked, windows)), strict=True)
    elapsed_s = time.perf_counter() - start_s
    return Pass(sum(tokens), elapsed_s, cpu_s(running.computing) - start_cpu_s, latencies_s, scores)
