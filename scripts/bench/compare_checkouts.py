"""Compares two checkouts of the repository: CPU milliseconds per request of the engine alone, gRPC and HTTP.

    python -m scripts.bench.compare_checkouts BEFORE AFTER [--model identity] [--passages 20]

The engine is also given texts that it has never seen. Both services run at the same time and are asked in turns, so
that other work on the machine affects both. Each checkout needs an environment in its folder .venv. A ratio below 1
means that AFTER takes less.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx2
import psutil
import typer

from rerank import RerankClient
from scripts.service import running_service

_QUERY = "how long does a flea live"
#: Ranks requests in the process and prints the CPU milliseconds of each. Standard input gives their number, and 1 if
#: each request has new texts, or 0 if all requests have the same texts.
_ENGINE = """
import sys, time
from rerank import Reranker
texts = {texts!r}
with Reranker({model!r}) as reranker:
    rank = lambda seen: reranker.rerank({query!r}, [(str(n), f"{{text}} {{seen}}") for n, text in enumerate(texts)])
    seen = 0
    rank(seen)
    print(0, flush=True)
    for line in sys.stdin:
        requests, new = map(int, line.split())
        start = time.process_time()
        for _ in range(requests):
            seen += new
            rank(seen)
        print((time.process_time() - start) * 1000 / requests, flush=True)
"""

#: Sends a number of requests and returns the CPU milliseconds of the service for each.
Measure = Callable[[int], float]


def _texts(passages: int) -> list[str]:
    return [f"Passage {number} says how long animal {number % 7} lives, and where." for number in range(passages)]


@contextmanager
def engine_of(checkout: Path, model: str, passages: int) -> Iterator[dict[str, Measure]]:
    """The engine alone, in a process that waits for numbers of requests."""
    code = _ENGINE.format(texts=_texts(passages), model=model, query=_QUERY)
    command = [str(checkout / ".venv/bin/python"), "-c", code]
    with subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None
        answers.readline()  # the model is loaded

        def measure(new: int, requests: int) -> float:
            print(requests, new, file=asked, flush=True)
            return float(answers.readline())

        yield {"engine alone": partial(measure, 0), "engine, new texts": partial(measure, 1)}
        asked.close()


@contextmanager
def service_of(checkout: Path, model: str, passages: int) -> Iterator[dict[str, Measure]]:
    """A service of the checkout, asked over gRPC and HTTP by one caller and by eight."""
    with (
        running_service({}, checkout=checkout) as service,
        RerankClient(service.address) as client,
        httpx2.Client(base_url=f"http://{service.http_address}") as http,
    ):
        texts = _texts(passages)
        body = {"query": _QUERY, "documents": texts, "model": model}

        def over_grpc() -> None:
            client.rerank(_QUERY, [(str(n), text) for n, text in enumerate(texts)], model=model)

        def over_http() -> None:
            http.post("/v2/rerank", json=body).raise_for_status()

        process = psutil.Process(service.process.pid)

        def measure(call: Callable[[], None], callers: int, requests: int) -> float:
            before = sum(process.cpu_times()[:2])
            with ThreadPoolExecutor(callers) as pool:
                for future in [pool.submit(call) for _ in range(requests)]:
                    future.result()
            return (sum(process.cpu_times()[:2]) - before) * 1000 / requests

        ports = {"gRPC": over_grpc, "HTTP": over_http}
        yield {
            f"{name}, {callers} caller{'s' * (callers > 1)}": partial(measure, call, callers)
            for name, call in ports.items()
            for callers in (1, 8)
        }


def main(
    before: Annotated[Path, typer.Argument(help="A checkout with an environment.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    model: Annotated[str, typer.Option(help="Name of a bundled model.")] = "identity",
    passages: Annotated[int, typer.Option(min=1, help="Passages of a request.")] = 20,
    requests: Annotated[int, typer.Option(help="Requests per turn.")] = 1000,
    turns: Annotated[int, typer.Option(help="Turns of each checkout; the first warms up.")] = 6,
) -> None:
    """Print a row for each way to ask: CPU milliseconds per request before and after, and their ratio."""
    with ExitStack() as stack:
        measures = []
        for checkout in (before.resolve(), after.resolve()):
            engine = stack.enter_context(engine_of(checkout, model, passages))
            measures.append(engine | stack.enter_context(service_of(checkout, model, passages)))
        print(f"{'':20} before  after  after / before (median of {turns - 1} turns, range)")
        for name in measures[0]:
            pairs = [tuple(measure[name](requests) for measure in measures) for _ in range(turns)][1:]
            ratios = sorted(later / earlier for earlier, later in pairs)
            middle = [median(values) for values in zip(*pairs, strict=True)]
            spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"{name:20} {middle[0]:6.2f} {middle[1]:6.2f}  {spread}", flush=True)


if __name__ == "__main__":
    typer.run(main)
