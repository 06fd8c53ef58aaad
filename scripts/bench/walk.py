"""The walk of one request through the code of a running service: files, functions, and returns to files seen before.

    python -m scripts.bench.walk [--port http] [--model first] [--passages 100] [--verbose]

Whoever follows a request meets each function when it first runs. A return is a step, for a function that has not run
yet, to a file that was left before. The service is a separate process; all of its threads are profiled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any, Literal, NamedTuple

import httpx2
import typer

_ROOT = Path(__file__).resolve().parents[2]
_QUERY = "how long does a flea live"
#: Set in the process of the service: the file for what it records.
_RECORD_TO = "WALK_RECORD_TO"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Function(NamedTuple):
    """A function of the project, and how often it was called."""

    file: str
    name: str
    calls: int


class Recorder:
    """Counts calls of functions in the order of their first run, between two signals SIGUSR1."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._calls: Counter[CodeType] = Counter()
        self._is_on = False

    def on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call":
            self._calls[frame.f_code] += 1

    def switch(self, *_: object) -> None:
        """Begins to record, or ends and writes what was recorded."""
        self._is_on = not self._is_on
        if self._is_on:
            self._calls.clear()
            return
        package, generated = str(_ROOT / "rerank") + os.sep, str(_ROOT / "rerank" / "v1")
        rows = [
            (os.path.relpath(code.co_filename, _ROOT), code.co_qualname, calls)
            for code, calls in list(self._calls.items())
            if code.co_filename.startswith(package) and not code.co_filename.startswith(generated)
        ]
        part = self._out.with_suffix(".part")
        part.write_text(json.dumps(rows), encoding="utf-8")
        part.rename(self._out)


def serve(out: Path) -> None:
    """Runs `rerank serve` with the arguments of this process, and records its functions."""
    from rerank.commands.cli import main as rerank_main

    recorder = Recorder(out)
    signal.signal(signal.SIGUSR1, recorder.switch)
    threading.setprofile(recorder.on_event)
    sys.setprofile(recorder.on_event)
    rerank_main()


@contextmanager
def recording_service() -> Iterator[tuple[subprocess.Popen[str], str, str, Path]]:
    """A service and its addresses for gRPC and HTTP, and the file for what it records."""
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        out, log = Path(folder) / "calls.json", Path(folder) / "log"
        arguments = ["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--stop-at-eof"]
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "scripts.bench.walk", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {_RECORD_TO: str(out)},
            )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            (line,) = (line for line in log.read_text(encoding="utf-8").splitlines() if "HTTP at " in line)
            yield process, address, line.partition("HTTP at ")[2].split()[0], out
        finally:
            process.kill()
            process.wait()


def walk(service: subprocess.Popen[str], out: Path, ask: Callable[[], object]) -> list[Function]:
    """Returns the functions that run for a request, in the order of their first run."""
    ask()  # what is made once
    out.unlink(missing_ok=True)
    service.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    ask()
    time.sleep(0.5)  # what follows the answer
    service.send_signal(signal.SIGUSR1)
    while not out.exists():
        time.sleep(0.05)
    return [Function(*row) for row in json.loads(out.read_text(encoding="utf-8"))]


def figures(functions: Sequence[Function]) -> dict[str, int]:
    """Files, functions and calls, and returns to files."""
    stays = [file for file, _ in groupby(function.file for function in functions)]
    files = len({*stays})
    calls = sum(function.calls for function in functions)
    return {"files": files, "functions": len(functions), "returns": len(stays) - files, "calls": calls}


@app.command()
def main(
    port: Annotated[Literal["grpc", "http"], typer.Option(help="gRPC Rerank, or POST /v2/rerank.")] = "grpc",
    model: Annotated[str, typer.Option()] = "first",
    passages: Annotated[int, typer.Option(min=1)] = 100,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print each function with its calls.")] = False,
) -> None:
    """Print the walk of a request as a whole, and what of it is in the engine and the rankers."""
    from rerank import RerankClient

    texts = [f"Passage {number} says how long animal {number % 7} lives, and where." for number in range(passages)]
    with recording_service() as (service, address, http, out), RerankClient(address) as client:
        body = {"model": model, "query": _QUERY, "documents": texts}
        by_port: dict[str, Callable[[], object]] = {
            "grpc": partial(client.rerank, _QUERY, texts, model=model),
            "http": lambda: httpx2.post(f"{http}/v2/rerank", json=body, timeout=600).raise_for_status(),
        }
        functions = walk(service, out, by_port[port])
    for function in functions if verbose else ():
        print(f"{function.calls:6}  {function.file}  {function.name}")
    inner = [function for function in functions if function.file.startswith(("rerank/engine/", "rerank/rankers/"))]
    for name, some in (("all", functions), ("engine and rankers", inner)):
        print(f"{name}:", ", ".join(f"{what} {number:,}" for what, number in figures(some).items()))


if __name__ == "__main__":
    if _RECORD_TO in os.environ:
        serve(Path(os.environ[_RECORD_TO]))
    else:
        app()
