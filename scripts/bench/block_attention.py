"""FIRST with causal and with block attention, side by side: tokens, processor time, memory and the order's effect.

    python -m scripts.bench.block_attention --requests requests.jsonl --model causal=FOLDER --model block=FOLDER

Each query of the file ranks its candidates by sliding windows of 20/10 and by a tournament, each with

- nothing kept: only what the request itself has read is not read again,
- its passages kept from a request with another query,
- everything kept from the same request.

Then the first 20 candidates of each query are ranked as one window in many orders.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer
from scipy.stats import kendalltau

from rerank.checkpoints.manifest import served_model
from rerank.commands.run import run
from rerank.config import ServiceConfig
from rerank.config.loading import load_config
from rerank.readers.requests import Request, read_requests
from rerank.reranking.reranker import AsyncReranker, load_reranker
from rerank.types import Query, Ranking, RankOptions

_WINDOW, _ORDERS, _CALLERS = 20, 20, 8
_OTHER_QUERY = Query("a question about something else")
_STRATEGIES = ("sliding", "tournament")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request file; its first queries are ranked.")],
    model: Annotated[list[str], typer.Option(help="NAME=FOLDER of a FIRST checkpoint; the first one is the baseline.")],
    queries: Annotated[int, typer.Option(help="Number of queries.")] = 3,
    state_bytes: Annotated[int, typer.Option(help="engine.passage_state_bytes.")] = 1 << 30,
) -> None:
    """Print a Markdown table of costs, and a line for each model about the order of a window."""
    given = read_requests(requests)[:queries]
    models = [served_model(each) for each in model]
    config = load_config(None, models=models, engine={"passage_state_bytes": state_bytes})
    asyncio.run(_measure(config, given))


async def _measure(config: ServiceConfig, requests: list[Request]) -> None:
    names = [each.name for each in config.models]
    costs: dict[tuple[str, str, str], list[tuple[int, float]]] = defaultdict(list)
    async with load_reranker(config) as reranker:
        for request in requests:
            for strategy in _STRATEGIES:
                for name in names:
                    options = RankOptions(model=name, strategy=strategy, window_size=_WINDOW)
                    for state, cost in (await _costs(reranker, request, options)).items():
                        costs[strategy, name, state].append(cost)
        print("| strategy | model | kept | tokens a query | of the first | seconds a query | of the first |")
        print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
        for (strategy, name, state), of_queries in costs.items():
            tokens, seconds = (mean(column) for column in zip(*of_queries, strict=True))
            base = [mean(column) for column in zip(*costs[strategy, names[0], "nothing"], strict=True)]
            ratios = f"{tokens:,.0f} | {base[0] / tokens:.2f}x less | {seconds:.2f} | {base[1] / seconds:.2f}x less"
            print(f"| {strategy} | {name} | {state} | {ratios} |")
        for name, cache in reranker.state_caches.items():
            print(f"\n{name} keeps {cache.used_bytes / 2**20:,.0f} MiB of states")
        for name in names:
            await _orders(reranker, requests, name)
            await _callers(reranker, requests, name)


async def _costs(reranker: AsyncReranker, request: Request, options: RankOptions) -> dict[str, tuple[int, float]]:
    """By what was kept: tokens and seconds of processor time of a request."""
    _forget(reranker)
    found = {"nothing": await _cost(reranker, request.query, request, options)}
    if options.model in reranker.state_caches:
        found["the request"] = await _cost(reranker, request.query, request, options)
        _forget(reranker)
        await _rank(reranker, _OTHER_QUERY, request, options)
        found["the passages"] = await _cost(reranker, request.query, request, options)
    return found


def _forget(reranker: AsyncReranker) -> None:
    for cache in reranker.state_caches.values():
        cache.clear()


async def _cost(reranker: AsyncReranker, query: Query, request: Request, options: RankOptions) -> tuple[int, float]:
    started = time.process_time()
    ranking = await _rank(reranker, query, request, options)
    return ranking.trace.tokens, time.process_time() - started


async def _rank(reranker: AsyncReranker, query: Query, request: Request, options: RankOptions) -> Ranking:
    return await reranker.rerank(query, request.candidates, options)


async def _orders(reranker: AsyncReranker, requests: list[Request], name: str) -> None:
    """The effect of the order of a window on its scores and on the order of its passages."""
    difference, taus = 0.0, list[float]()
    for request in requests:
        options = RankOptions(model=name, strategy="single", window_size=_WINDOW)
        scores = []
        for seed in range(_ORDERS):
            candidates = random.Random(seed).sample(request.candidates[:_WINDOW], _WINDOW)
            ranking = await reranker.rerank(request.query, candidates, options)
            by_id = {item.candidate.passage.doc_id: item.score for item in ranking.ranked}
            scores.append([by_id[candidate.doc_id] for candidate in request.candidates[:_WINDOW]])
        difference = max(difference, *(max(column) - min(column) for column in zip(*scores, strict=True)))
        rounded = [[round(score, 5) for score in row] for row in scores]  # equal passages have equal scores
        taus += [kendalltau(one, other).statistic for one, other in combinations(rounded, 2)]
    print(f"\n{name}, windows of {_WINDOW} in {_ORDERS} orders: scores differ by {difference:.2g} at most, ", end="")
    print(f"Kendall's tau of two orders is {mean(taus):.3f} on average")


async def _callers(reranker: AsyncReranker, requests: list[Request], name: str) -> None:
    """Requests per second of processor time of callers who send sliding requests at the same time."""
    options = RankOptions(model=name, strategy="sliding", window_size=_WINDOW)
    _forget(reranker)
    sent = [requests[place % len(requests)] for place in range(_CALLERS)]
    started = time.process_time()
    await asyncio.gather(*(_rank(reranker, each.query, each, options) for each in sent))
    per_s = _CALLERS / (time.process_time() - started)
    print(f"{name}, {_CALLERS} callers with {len(requests)} different requests: {per_s:.2f} requests/s")


if __name__ == "__main__":
    run(app)
