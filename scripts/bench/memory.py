"""Resident memory of a service while it answers requests of varied lengths, in MB.

    python -m scripts.bench.memory [--models default,pe-rank,first] [--index DIR] [--requests 350]

Starts `rerank serve` and sends one request after the other: 1 to 30 new passages of 10 to 3,000 characters, to the
models in turns. With an index, each second request is a search. Prints the memory at the start and after each 25th
request. The guide's figures for deployments come from here.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer

from rerank import RerankClient
from rerank.commands.run import run
from scripts.random_requests import words
from scripts.service import running_service

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
#: Seconds for a request, also on a busy machine, and requests between two figures.
_TIMEOUT_S, _PRINTED_EVERY = 600.0, 25


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Models that are asked in turns.")] = "default,pe-rank,first",
    index: Annotated[Path | None, typer.Option(help="Index that is searched.")] = None,
    requests: Annotated[int, typer.Option(help="Number of requests.")] = 350,
) -> None:
    """Print the resident memory of a service as it answers requests."""
    draw, names = random.Random(0), models.split(",")
    settings = {"limits": {"max_request_s": _TIMEOUT_S}} | ({"index": str(index.resolve())} if index else {})
    with running_service(settings) as service, RerankClient(service.address) as client:
        print(f"{service.resident_mb():,.0f} MB at the start", flush=True)
        for number in range(1, requests + 1):
            model = names[number % len(names)]
            if index and number % 2:
                client.search(
                    words(draw, draw.randint(5, 60)), depth=draw.randint(1, 30), model=model, timeout_s=_TIMEOUT_S
                )
            else:
                texts = [_new_text(draw, number) for _ in range(draw.randint(1, 30))]
                client.rerank(words(draw, draw.randint(5, 200)), texts, model=model, timeout_s=_TIMEOUT_S)
            if number % _PRINTED_EVERY == 0:
                print(f"{service.resident_mb():,.0f} MB after {number} requests", flush=True)


def _new_text(draw: random.Random, number: int) -> str:
    return f"{number} {draw.random()} {words(draw, round(10 ** draw.uniform(1, 3.5)))}"


if __name__ == "__main__":
    run(app)
