"""The walk of one request or command through the code: files, functions, and returns to files seen before.

    python -m scripts.bench.walk [--of http|eval-trec-dl|train-first] [--model first] [--passages 100] [--verbose]

Whoever follows a request meets each function when it first runs. A return is a step, for a function that has not run
yet, to a file that was left before. What runs is a separate process, whose threads are all profiled; functions that run
while a module is imported do not count. `eval-trec-dl` evaluates a model on two queries, and the functions of the
service that it starts do not count; `train-first` makes two steps from a tiny random model on six lists.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any, Literal, NamedTuple

import httpx2
import typer

from scripts.service import running_service

_ROOT = Path(__file__).resolve().parents[2]
_QUERY = "how long does a flea live"
#: The module and the flag of the process that is profiled; the file for what it records and the command follow.
_RECORDER = ("scripts.bench.walk", "--record")
_PACKAGES = tuple(str(_ROOT / folder) + os.sep for folder in ("rerank", "eval/rerank_eval", "training/rerank_training"))
_GENERATED = str(_ROOT / "rerank" / "v1")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Function(NamedTuple):
    """A function of the project, and how often it was called."""

    file: str
    name: str
    calls: int


class Recorder:
    """Counts calls of functions in the order of their first run."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._calls: Counter[CodeType] = Counter()
        self._is_on = False
        self._thread = threading.local()

    def on_event(self, frame: FrameType, event: str, _: Any) -> None:
        code, imports = frame.f_code, getattr(self._thread, "imports", 0)
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or a class
            self._thread.imports = imports + (event == "call") - (event == "return")
        elif self._is_on and event == "call" and not imports:
            self._calls[code] += 1

    def switch(self, *_: object) -> None:
        """Begins to record, or ends and writes what was recorded."""
        self._is_on = not self._is_on
        if self._is_on:
            self._calls.clear()
            return
        rows = [
            (os.path.relpath(code.co_filename, _ROOT), code.co_qualname, calls)
            for code, calls in list(self._calls.items())
            if code.co_filename.startswith(_PACKAGES) and not code.co_filename.startswith(_GENERATED)
        ]
        part = self._out.with_suffix(".part")
        part.write_text(json.dumps(rows), encoding="utf-8")
        part.rename(self._out)


def record(out: Path, program: str, *arguments: str) -> None:
    """Runs one of our programs, and records its functions: of a service between two signals SIGUSR1, else of all."""
    sys.argv = [program, *arguments]
    main, recorder = entry_points(group="console_scripts")[program].load(), Recorder(out)
    signal.signal(signal.SIGUSR1, recorder.switch)
    threading.setprofile(recorder.on_event)
    sys.setprofile(recorder.on_event)
    if arguments[0] == "serve":
        main()
        return
    recorder.switch()
    try:
        main()
    finally:
        recorder.switch()


def walk_of_command(folder: Path, *command: str) -> list[Function]:
    """Returns the functions that run for a command, in the order of their first run."""
    out = folder / "calls.json"
    recorded = [sys.executable, "-m", *_RECORDER, str(out), *command]
    ended = subprocess.run(recorded, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stderr}")
    return _read(out)


def walk_of_request(folder: Path, port: str, model: str, texts: Sequence[str]) -> list[Function]:
    """Returns the functions that run for a request, in the order of their first run."""
    from rerank import RerankClient

    out = folder / "calls.json"
    with (
        running_service({}, program=(*_RECORDER, str(out), "rerank")) as service,
        RerankClient(service.address) as client,
    ):
        body = {"model": model, "query": _QUERY, "documents": texts}
        url = f"http://{service.http_address}/v2/rerank"
        by_port: dict[str, Callable[[], object]] = {
            "grpc": partial(client.rerank, _QUERY, texts, model=model),
            "http": lambda: httpx2.post(url, json=body, timeout=600).raise_for_status(),
        }
        send = by_port[port]
        send()  # what is made once
        service.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        send()
        time.sleep(0.5)  # what follows the answer
        service.process.send_signal(signal.SIGUSR1)
        while not out.exists():
            time.sleep(0.05)
        return _read(out)


def _read(out: Path) -> list[Function]:
    return [Function(*row) for row in json.loads(out.read_text(encoding="utf-8"))]


def evaluation(folder: Path, model: str, texts: Sequence[str]) -> list[str]:
    """Writes two judged lists, and returns a command that evaluates a model on them."""
    requests, qrels = folder / "requests.jsonl", folder / "qrels.txt"
    candidates = [{"docid": f"d{index}", "doc": text} for index, text in enumerate(texts)]
    rows = [{"query": {"qid": query_id, "text": _QUERY}, "candidates": candidates} for query_id in ("1", "2")]
    requests.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    qrels.write_text("1 0 d1 1\n2 0 d2 1\n", encoding="utf-8")
    files = ["--requests", str(requests), "--qrels", str(qrels), "--out", str(folder / "results")]
    return ["eval-trec-dl", *files, "--model", model]


def training(folder: Path, texts: Sequence[str]) -> list[str]:
    """Writes six lists and a random model of one layer, and returns a command that trains it."""
    from rerank_training.lists.training_list import TrainingList, write_lists

    from rerank.checkpoints import bundled
    from rerank.models.loading import load_tokenizer_of
    from rerank.types import Passage, Query
    from scripts.bench.models import LlamaSize, llama

    llama(LlamaSize(64, 128, 1, 2, 2, 49_152)).save_pretrained(folder / "base")
    load_tokenizer_of(bundled.FIRST).save_pretrained(folder / "base")
    passages = tuple(Passage(str(index), text) for index, text in enumerate(texts[:4]))
    lists = [TrainingList(Query(_QUERY, str(number)), passages, (1.0, 0.0, 0.0, 0.0)) for number in range(6)]
    write_lists(folder / "lists.jsonl", lists)
    paths = {"--base": folder / "base", "--lists": folder / "lists.jsonl", "--output-dir": folder / "run"}
    flags = ["--max-steps", "2", "--per-device-train-batch-size", "2", "--window-size", "4", "--use-cpu", "true"]
    return ["train-first", *(text for flag, path in paths.items() for text in (flag, str(path))), *flags]


def figures(functions: Sequence[Function]) -> dict[str, int]:
    """Files, functions and calls, and returns to files."""
    stays = [file for file, _ in groupby(function.file for function in functions)]
    files = len({*stays})
    calls = sum(function.calls for function in functions)
    return {"files": files, "functions": len(functions), "returns": len(stays) - files, "calls": calls}


@app.command()
def main(
    of: Annotated[
        Literal["grpc", "http", "eval-trec-dl", "train-first"], typer.Option(help="Rerank, POST /v2/rerank, a command.")
    ] = "grpc",
    model: Annotated[str, typer.Option(help="Is asked, or evaluated.")] = "first",
    passages: Annotated[int, typer.Option(min=4)] = 100,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print each function with its calls.")] = False,
) -> None:
    """Print the walk as a whole, and what of it is in the engine and the rankers."""
    texts = [f"Passage {number} says how long animal {number % 7} lives, and where." for number in range(passages)]
    with tempfile.TemporaryDirectory(prefix="walk-") as name:
        folder = Path(name)
        if of == "train-first":
            functions = walk_of_command(folder, *training(folder, texts))
        elif of == "eval-trec-dl":
            functions = walk_of_command(folder, *evaluation(folder, model, texts))
        else:
            functions = walk_of_request(folder, of, model, texts)
    for function in functions if verbose else ():
        print(f"{function.calls:6}  {function.file}  {function.name}")
    inner = [function for function in functions if function.file.startswith(("rerank/engine/", "rerank/rankers/"))]
    for name, some in (("all", functions), ("engine and rankers", inner)):
        print(f"{name}:", ", ".join(f"{what} {number:,}" for what, number in figures(some).items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(Path(sys.argv[2]), *sys.argv[3:])
    else:
        app()
