"""Our engine and inference servers, side by side: the same model, windows and number of cores.

    python -m scripts.bench.inference_servers --requests requests.jsonl --model FOLDER --name NAME \\
        --url caching=http://127.0.0.1:8000 --url no-caching=http://127.0.0.1:8001

All rank windows of 20 passages of BM25 through the engine, one request at a time and eight at once, in turns. Every
window is read once by each, so that a prefix cache holds only what windows really share. Elapsed time is measured, as
a server is another process: pin the servers to one core (taskset), and run this with OMP_NUM_THREADS=1 on another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from rerank.commands.run import run
from rerank.config import EngineConfig, FirstModel, Precision, ServedBy
from rerank.engine.engine import Engine
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Single, Step
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker, ServedRanker
from rerank.readers.requests import read_requests
from rerank.registry import load_ranker, load_served
from rerank.types import Candidate, Passage

_PASSAGES = 20
_TEMPLATE = "first_smollm2"
#: The name of our engine's model in the table.
_LOCAL = "local"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Measured:
    """A pass over some windows: its tokens and seconds, the latency of each window, and their scores."""

    tokens: int
    seconds: float
    latencies_s: Sequence[float]
    scores: Sequence[Sequence[float]]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@app.command()
def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request file (JSONL) with 100 candidates per query.")],
    model: Annotated[Path, typer.Option(help="Folder of the causal LM that the server runs, too.")],
    url: Annotated[list[str], typer.Option(help="A vLLM server as LABEL=URL; may be given several times.")],
    name: Annotated[str, typer.Option(help="Name of the model at the servers.")],
    windows: Annotated[int, typer.Option(help="Windows per pass.")] = 8,
    repeats: Annotated[int, typer.Option(help="Passes of each system at each number of requests.")] = 3,
    at_once: Annotated[str, typer.Option(help="Numbers of requests at once, in turn.")] = "1,8",
    precision: Annotated[str, typer.Option(help="Number format of our engine: float32 or bfloat16.")] = "float32",
) -> None:
    """Compare the local engine with vLLM servers, such as one with prefix caching and one without."""
    jobs = _windows(requests)
    loads = [int(load) for load in at_once.split(",")]
    needed = len(loads) * repeats * windows + 2
    if len(first := list(islice(jobs, needed))) < needed:
        raise ConfigError(f"{requests} has {len(first)} windows of {_PASSAGES} passages, {needed} are needed")
    asyncio.run(_compare(_models(model, url, name, precision), first, windows, repeats, loads))


def _models(folder: Path, urls: Sequence[str], name: str, precision: str) -> dict[str, FirstModel]:
    """The local model, and that of each server by its label. Raises: ConfigError if an address has none."""
    here: Precision = "bfloat16" if precision == "bfloat16" else "float32"
    models = {_LOCAL: FirstModel(name=_LOCAL, ranker="first", path=folder, template=_TEMPLATE, precision=here)}
    for labelled in urls:
        label, is_labelled, url = labelled.partition("=")
        if not is_labelled or label in models:
            raise ConfigError(f"--url {labelled}: write LABEL=URL, with a label of its own and not {_LOCAL}")
        by = ServedBy(kind="vllm", urls=(url,), model=name)
        models[label] = FirstModel(name=label, ranker="first", path=folder, template=_TEMPLATE, served_by=by)
    return models


def _windows(requests: Path) -> Iterator[RankRequest]:
    """Requests of one window each, which name no model yet."""
    for request in read_requests(requests):
        for start in range(0, len(request.candidates) - _PASSAGES + 1, _PASSAGES):
            some = request.candidates[start : start + _PASSAGES]
            passages = tuple(Candidate(Passage(each.doc_id, each.text or "")) for each in some)
            yield RankRequest(request.query, passages, ())


async def _compare(
    models: dict[str, FirstModel], jobs: Sequence[RankRequest], windows: int, repeats: int, loads: Sequence[int]
) -> None:
    rankers: dict[str, Ranker | ServedRanker] = {
        system: load_served(model) if model.served_by else load_ranker(model, Encoder(device="cpu"), "cpu")
        for system, model in models.items()
    }
    async with Engine(rankers, EngineConfig()) as engine:
        for system in rankers:
            await _measure(engine, system, jobs[:2], 1)  # warms up
        print("requests at once | system | tokens/s (range) | windows/s | p50 ms | p95 ms | ours / its tokens/s")
        rest = iter(jobs[2:])
        for at_once in loads:
            passes: dict[str, list[Measured]] = {system: [] for system in rankers}
            for _ in range(repeats):
                some = list(islice(rest, windows))
                for system, measured in passes.items():
                    measured.append(await _measure(engine, system, some, at_once))
            _report(at_once, passes)


async def _measure(engine: Engine, system: str, jobs: Sequence[RankRequest], at_once: int) -> Measured:
    free = asyncio.Semaphore(at_once)

    async def ranked(request: RankRequest) -> tuple[float, int, Sequence[float]]:
        async with free:
            start_s = time.perf_counter()
            ranking = await engine.run(replace(request, steps=(Step(system, Single(_PASSAGES)),)))
            return time.perf_counter() - start_s, ranking.trace.tokens, ranking.trace.windows[0].scores

    start_s = time.perf_counter()
    done = await asyncio.gather(*map(ranked, jobs))
    seconds = time.perf_counter() - start_s
    return Measured(sum(each[1] for each in done), seconds, [each[0] for each in done], [each[2] for each in done])


def _report(at_once: int, passes: dict[str, list[Measured]]) -> None:
    """One row for each system, with medians over its passes; and how its scores agree with ours."""
    ours = passes[_LOCAL]
    for system, measured in passes.items():
        rates = sorted(each.tokens_per_s for each in measured)
        latencies_ms = 1000 * np.array([latency for each in measured for latency in each.latencies_s])
        windows_per_s = median(len(each.latencies_s) / each.seconds for each in measured)
        ratios = sorted(local.tokens_per_s / its.tokens_per_s for local, its in zip(ours, measured, strict=True))
        print(
            f"{at_once} | {system} | {median(rates):.0f} ({rates[0]:.0f} to {rates[-1]:.0f}) | {windows_per_s:.3f} | "
            f"{np.percentile(latencies_ms, 50):.0f} | {np.percentile(latencies_ms, 95):.0f} | "
            f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
        if measured is not ours:
            print(f"  {_agreement(ours, measured)}")


def _agreement(ours: Sequence[Measured], its: Sequence[Measured]) -> str:
    """The largest difference of two systems' scores, and how many of their orders are the same."""
    pairs = zip(ours, its, strict=True)
    scores = [(np.array(a), np.array(b)) for x, y in pairs for a, b in zip(x.scores, y.scores, strict=True)]
    same = sum(bool((np.argsort(-a, kind="stable") == np.argsort(-b, kind="stable")).all()) for a, b in scores)
    largest = max(float(np.abs(a - b).max()) for a, b in scores)
    return f"scores within {largest:.1e}; {same} of {len(scores)} orders the same"


if __name__ == "__main__":
    run(app)
