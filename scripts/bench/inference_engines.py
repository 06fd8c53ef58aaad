"""Our engine and others, side by side: the same weights, windows and core.

    python -m scripts.bench.inference_engines --requests requests.jsonl --model FOLDER --name NAME --core 1 \\
        --out passes.jsonl --precisions float32,bfloat16 --server vllm:bf16=http://127.0.0.1:8000 \\
        --server llama-cpp:Q8_0=http://127.0.0.1:8001

Windows of 20 passages are ranked by FIRST, one at a time and eight at once, by one system after the other, so that
other work on the machine meets all alike. Each window is read once by each system, so that a prefix cache holds only
what windows really share. Run this with OMP_NUM_THREADS=1. Start the servers before, on the core of `--core` (taskset)
and with one thread each: only one system computes at a time.

Processor time is the fair measure beside other work: elapsed time also has what others take of the core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, cast, get_args

import numpy as np
import typer

from rerank.commands.console import PlainConsole
from rerank.commands.progress import show_progress
from rerank.commands.run import run
from rerank.config import FirstModel, Precision, ServedBy
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Single, Step
from rerank.errors import ConfigError
from rerank.readers.requests import read_requests
from rerank.types import Candidate, Passage
from scripts.bench.engine_process import MODEL, EngineProcess, Pass
from scripts.bench.orders import kendall_tau, neighbours_alike

_PASSAGES = 20
_TEMPLATE = "first_smollm2"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request file (JSONL) with 20 or more candidates per query.")],
    model: Annotated[Path, typer.Option(help="Folder of the causal LM that the servers run, too.")],
    server: Annotated[list[str], typer.Option(help="A server as KIND:LABEL=URL; may be given several times.")],
    name: Annotated[str, typer.Option(help="Name of the model at the servers.")],
    out: Annotated[Path, typer.Option(help="Each pass is added to this file (JSONL).")],
    precisions: Annotated[str, typer.Option(help="Of our engine. Orders are compared with the first.")] = "float32",
    windows: Annotated[int, typer.Option(min=1, help="Windows per pass.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each system at each number of requests.")] = 3,
    at_once: Annotated[str, typer.Option(help="Numbers of requests at once, in turn.")] = "1,8",
    core: Annotated[int | None, typer.Option(help="The core of our engine. Default: any.")] = None,
) -> None:
    """Compare our engine, in each precision, with servers of vLLM, SGLang or llama.cpp."""
    loads = [int(load) for load in at_once.split(",")]
    needed = len(loads) * repeats * windows + 1
    if len(first := list(islice(_windows(requests), needed))) < needed:
        raise ConfigError(f"{requests} has {len(first)} windows of {_PASSAGES} passages, {needed} are needed")
    ours, servers = local_models(model, precisions.split(",")), served_models(model, server, name)
    with ExitStack() as stack:
        systems = {
            label: stack.enter_context(closing(EngineProcess(settings, core)))
            for label, settings in {**ours, **servers}.items()
        }
        _compare(systems, list(ours), first, windows, repeats, loads, out)


def local_models(folder: Path, precisions: Sequence[str]) -> dict[str, FirstModel]:
    """Our engine's model in each precision. Raises: ConfigError if there is no such precision."""
    if unknown := set(precisions) - set(get_args(Precision)):
        raise ConfigError(f"--precisions: {', '.join(sorted(unknown))} is none of {', '.join(get_args(Precision))}")
    return {f"ours, {each}": _first(folder, precision=cast(Precision, each)) for each in precisions}


def served_models(folder: Path, servers: Sequence[str], name: str) -> dict[str, FirstModel]:
    """The model of each server by kind and label. Raises: ConfigError if one has no kind, label or address."""
    models = dict[str, FirstModel]()
    for server in servers:
        label, _, url = server.partition("=")
        kind, _, rest = label.partition(":")
        if not (kind and rest and url) or f"{kind}, {rest}" in models:
            raise ConfigError(f"--server {server}: write KIND:LABEL=URL, with a label of its own")
        models[f"{kind}, {rest}"] = _first(folder, served_by=ServedBy(kind=kind, urls=(url,), model=name))
    return models


def _first(folder: Path, **settings: object) -> FirstModel:
    return FirstModel.model_validate(
        {"name": MODEL, "ranker": "first", "path": folder, "template": _TEMPLATE, **settings}
    )


def _windows(requests: Path) -> Iterator[RankRequest]:
    """Requests of one window each."""
    for request in read_requests(requests):
        for start in range(0, len(request.candidates) - _PASSAGES + 1, _PASSAGES):
            some = request.candidates[start : start + _PASSAGES]
            passages = tuple(Candidate(Passage(each.doc_id, each.text or "")) for each in some)
            yield RankRequest(request.query, passages, (Step(MODEL, Single(_PASSAGES)),))


def _compare(
    systems: Mapping[str, EngineProcess],
    ours: Sequence[str],
    jobs: Sequence[RankRequest],
    windows: int,
    repeats: int,
    loads: Sequence[int],
    out: Path,
) -> None:
    passes: dict[tuple[int, str], list[Pass]] = {(load, label): [] for load in loads for label in systems}
    rest = iter(jobs[1:])
    with show_progress(PlainConsole(stderr=True)) as progress:
        for system in systems.values():
            system.rank(jobs[:1], 1)  # warms up
        for load in loads:
            for _ in range(repeats):
                some = list(islice(rest, windows))
                for label, system in systems.items():
                    progress.report("passes", sum(map(len, passes.values())), repeats * len(passes))
                    measured = system.rank(some, load)
                    passes[load, label].append(measured)
                    with out.open("a", encoding="utf-8") as file:
                        print(json.dumps({"at_once": load, "system": label, **asdict(measured)}), file=file)
    headers = ["Requests at once", "System", "Tokens/s", "Tokens per CPU s", "Windows/s", "p50 ms", "p95 ms"]
    _print_row(*headers, *(f"{each} against it" for each in ours))
    _print_row("---:", "---", *["---:"] * (5 + len(ours)))
    for (load, label), its in passes.items():
        _print_row(str(load), label, *speed(its), *(against(passes[load, each], its) for each in ours))
    print()
    _print_row("System", "Peak memory, MB", "Orders the same", "Neighbours alike", "Kendall's tau", "Scores within")
    _print_row("---", *["---:"] * 5)
    for label, system in systems.items():
        pairs = [(passes[load, ours[0]], passes[load, label]) for load in loads]
        _print_row(label, f"{system.peak_mb():,.0f}", *agreement(*(_scores(each) for each in zip(*pairs, strict=True))))


def _print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def speed(passes: Sequence[Pass]) -> list[str]:
    """Tokens/s, tokens per CPU second, windows/s, p50 and p95 of a system: medians over its passes, and ranges."""
    latencies_ms = 1000 * np.array([latency for each in passes for latency in each.latencies_s])
    return [
        _with_range([each.tokens / each.elapsed_s for each in passes], "{:.0f}".format),
        _with_range([_tokens_per_cpu_s(each) for each in passes], "{:.0f}".format),
        f"{median(len(each.latencies_s) / each.elapsed_s for each in passes):.3f}",
        *(f"{np.percentile(latencies_ms, percent):,.0f}" for percent in (50, 95)),
    ]


def against(ours: Sequence[Pass], its: Sequence[Pass]) -> str:
    """Our tokens per CPU second in units of those of another system, which ranked the same windows in turn."""
    turns = zip(ours, its, strict=True)
    return _with_range([_tokens_per_cpu_s(a) / _tokens_per_cpu_s(b) for a, b in turns], "{:.2f}".format)


def _tokens_per_cpu_s(measured: Pass) -> float:
    return measured.tokens / measured.cpu_s


def _with_range(values: Sequence[float], text: Callable[[float], str]) -> str:
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"


def _scores(passes: Iterable[Sequence[Pass]]) -> list[Sequence[float]]:
    return [scores for some in passes for each in some for scores in each.scores]


def agreement(reference: Sequence[Sequence[float]], its: Sequence[Sequence[float]]) -> list[str]:
    """Agreement of the orders of windows by two systems' scores, and the largest difference of their scores."""
    pairs = [(np.array(a), np.array(b)) for a, b in zip(reference, its, strict=True)]
    orders = [(np.argsort(-a, kind="stable").tolist(), np.argsort(-b, kind="stable").tolist()) for a, b in pairs]
    same = sum(a == b for a, b in orders)
    alike = fmean(neighbours_alike(a, b) for a, b in orders)
    tau = fmean(kendall_tau(a, b) for a, b in orders)
    largest = max(float(np.abs(a - b).max()) for a, b in pairs)
    return [f"{same} of {len(orders)}", f"{100 * alike:.1f} %", f"{tau:.3f}", f"{largest:.1e}"]


if __name__ == "__main__":
    run(app)
