"""Table of schedules: their cost and their nDCG@10 with a simulated ranker; writes docs/schedules.md.

    python scripts/schedule_table.py --requests requests.jsonl --qrels qrels.txt --out docs/schedules.md

The simulated ranker scores a passage by its judged grade plus Gaussian noise, drawn anew in every window, as a model
that contradicts itself does. No model runs; the schedules are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from ir_measures import nDCG
from rerank_eval.measures import measure

from rerank.commands.run import run
from rerank.engine.strategies import Positions, Single, Sliding, Step, Steps, TopDown, Tournament, describe
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.requests import Request, read_requests
from rerank.types import ScoredDoc, WindowRanking

#: Standard deviations of the noise.
NOISES = (0.0, 0.5, 1.0)
PRERANKER_NOISE = 1.5
SEEDS = range(5)
_STRATEGIES = (
    Single(20),
    Single(100),
    Sliding(20, 10),
    Sliding(20, 10, early_stop=True),
    Sliding(10, 5),
    TopDown(20),
    Tournament(20),
)
CASCADE = (Step("preranker", Single(100)), Step("", Single(20)))
SCHEDULES: Sequence[Steps] = (*((Step("", strategy),) for strategy in _STRATEGIES), CASCADE)

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Simulation:
    """One list ordered by one strategy, and its cost without the windows of the preranker."""

    order: list[int]
    windows: int
    rounds: int
    passages: int


@app.command()
def table(
    requests: Annotated[Path, typer.Option(help="RankLLM request file (JSONL).")],
    qrels: Annotated[Path, typer.Option(help="Judgements in TREC form.")],
    out: Annotated[Path, typer.Option(help="The Markdown file to write.")] = Path("docs/schedules.md"),
) -> None:
    """Simulate every schedule and write the table."""
    rows, judgements = read_requests(requests), read_qrels(qrels)
    grades: dict[str, dict[str, int]] = {}
    for qrel in judgements:
        grades.setdefault(qrel.query_id, {})[qrel.doc_id] = qrel.relevance
    lines = [
        f"| schedule | windows | rounds | passages read | {' | '.join(f'noise {noise}' for noise in NOISES)} |",
        f"| --- | ---: | ---: | ---: | {' | '.join('---:' for _ in NOISES)} |",
    ]
    for steps in SCHEDULES:
        simulations = {noise: [_simulate_all(steps, rows, grades, noise, seed) for seed in SEEDS] for noise in NOISES}
        measured = [simulation for by_query in simulations[NOISES[1]] for simulation in by_query.values()]
        costs = [
            fmean(getattr(simulation, field) for simulation in measured) for field in ("windows", "rounds", "passages")
        ]
        scores = [fmean(_ndcg(by_query, rows, judgements) for by_query in simulations[noise]) for noise in NOISES]
        cells = [f"{cost:.1f}" for cost in costs] + [f"{score:.3f}" for score in scores]
        lines.append(f"| {describe(steps)} | {' | '.join(cells)} |")
    page = _PAGE.format(queries=len(rows), noise=NOISES[1], preranker=PRERANKER_NOISE, table="\n".join(lines))
    out.write_text(page, encoding="utf-8")
    print("\n".join(lines))


def _simulate_all(
    steps: Steps, requests: Sequence[Request], grades: Mapping[str, Mapping[str, int]], noise: float, seed: int
) -> dict[str, Simulation]:
    rng = random.Random(seed)
    simulations = {}
    for request in requests:
        by_doc = grades.get(request.query.query_id, {})
        relevance = [float(by_doc.get(candidate.doc_id, 0)) for candidate in request.candidates]
        simulations[request.query.query_id] = _simulate(steps, relevance, noise, rng)
    return simulations


def _simulate(steps: Steps, relevance: Sequence[float], noise: float, rng: random.Random) -> Simulation:
    order = list(range(len(relevance)))
    for step in steps:
        simulation = _simulate_step(step, order, relevance, PRERANKER_NOISE if step.model else noise, rng)
        order = simulation.order
    return simulation


def _simulate_step(
    step: Step, order: Sequence[int], relevance: Sequence[float], noise: float, rng: random.Random
) -> Simulation:
    windows, rounds = list[Positions](), 0
    schedule = step.strategy.schedule(order)
    try:
        round_ = next(schedule)
        while True:
            windows, rounds = [*windows, *round_.windows], rounds + 1
            rankings = [
                WindowRanking(tuple(relevance[position] + rng.gauss(0, noise) for position in window))
                for window in round_.windows
            ]
            round_ = schedule.send(rankings)
    except StopIteration as stop:
        return Simulation(stop.value, len(windows), rounds, sum(map(len, windows)))


def _ndcg(simulations: Mapping[str, Simulation], requests: Sequence[Request], qrels: Sequence[Qrel]) -> float:
    run = {
        request.query.query_id: [
            ScoredDoc(request.candidates[position].doc_id, -float(rank))
            for rank, position in enumerate(simulations[request.query.query_id].order)
        ]
        for request in requests
    }
    return measure([nDCG @ 10], qrels, run).mean["nDCG@10"]


_PAGE = """# Schedules

The cost of each schedule for 100 candidates, and its nDCG@10 with a simulated ranker: the judged grade plus Gaussian
noise of the stated standard deviation, drawn anew in every window. TREC DL 2019, {queries} queries, BM25 top-100 (.506
in BM25's order), mean of five seeds; costs at noise {noise}. The preranker of the cascade has noise {preranker} and
reads all 100 candidates in one window, which is not counted. Written by `python scripts/schedule_table.py`; no model
ran.

{table}

The rounds of a schedule run one after the other, the windows of a round at the same time. The costs of `top-down` and
of the early stop depend on the rankings.
"""


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
