"""Many requests over one stream: their throughput beside that of the engine alone, and the memory that they take.

    python -m scripts.bench.stream --model pe-rank --requests 2000

`rerank serve` runs in a process of its own. Blocks of new random requests go through it by `RerankClient.rerank_many`,
and in turns with them through `Reranker.rerank_many` in this process, which is the engine without gRPC. A ratio is the
throughput over the stream divided by that of the engine. Then one stream takes all requests, and the memory of both
processes is read after a tenth of them and at their end.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Annotated

import psutil
import torch
import typer

from rerank.client.client import RerankClient
from rerank.commands.run import run
from rerank.config.named import config_of_model
from rerank.reranking.blocking import Reranker
from rerank.types import RankOptions
from scripts.load_test.requests import words

Asked = tuple[str, list[str]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    model: Annotated[str, typer.Option(help="A model that `rerank serve` has by default.")] = "pe-rank",
    requests: Annotated[int, typer.Option(min=10, help="Requests of the long stream.")] = 10_000,
    block: Annotated[int, typer.Option(min=1, help="Requests of a block.")] = 200,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each kind.")] = 5,
    passages: Annotated[int, typer.Option(min=1, help="Passages of a request.")] = 20,
    characters: Annotated[int, typer.Option(min=1, help="Characters of a passage.")] = 100,
) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    made = _requests(passages, characters)
    with _service() as (process, target), RerankClient(target) as client, Reranker(config_of_model(model)) as engine:

        def over_stream(number: int) -> float:
            return _per_second(client.rerank_many([next(made) for _ in range(number)], model=model), number)

        def in_engine(number: int) -> float:
            some = [next(made) for _ in range(number)]
            return _per_second(engine.rerank_many(some, RankOptions()), number)

        for warm_up in (over_stream, in_engine):
            warm_up(block)
        pairs = [(over_stream(block), in_engine(block)) for _ in range(blocks)]
        ratios = sorted(stream / alone for stream, alone in pairs)
        speeds = [f"{median(each):.1f}" for each in zip(*pairs, strict=True)]
        print(f"{model}: {speeds[0]} requests/s over the stream, {speeds[1]} in the engine alone (medians of {blocks})")
        print(f"ratio: median {median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}")
        answers = client.rerank_many((next(made) for _ in range(requests)), model=model)
        for number, answer in enumerate(answers, start=1):
            assert not isinstance(answer, Exception), answer
            if number in (requests // 10, requests):
                sizes = [psutil.Process(each).memory_info().rss / 1e6 for each in (process.pid, None)]
                print(f"after {number} requests: service {sizes[0]:.1f} MB, this process {sizes[1]:.1f} MB", flush=True)


def _requests(passages: int, characters: int) -> Iterator[Asked]:
    """New requests without end, so that no vector of a text is known."""
    draw = random.Random(0)
    while True:
        yield words(draw, 30), [words(draw, characters) for _ in range(passages)]


def _per_second(answers: Iterable[object], number: int) -> float:
    start_s = time.perf_counter()
    for answer in answers:
        assert not isinstance(answer, Exception), answer
    return number / (time.perf_counter() - start_s)


@contextmanager
def _service() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`rerank serve` with its default models, and its address."""
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--listen", "127.0.0.1:0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    run(app)
