"""What each schedule costs and finds with a ranker of a stated noise: writes docs/schedules.md.

    python scripts/schedule_table.py --requests requests.jsonl --qrels qrels.txt --out docs/schedules.md

The simulated ranker scores a passage by its judged grade plus Gaussian noise that is drawn anew in every window: a
model that disagrees with itself. No model runs; the schedules are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from ir_measures import Qrel, nDCG
from rerank_eval.data import Request, read_requests, read_trec_qrels
from rerank_eval.measures import measure

from rerank.commands.cli import run
from rerank.engine.strategies import Cascade, Positions, Single, Sliding, Strategy, TopDown, Tournament
from rerank.types import ScoredDoc, WindowRanking

NOISES = (0.0, 0.5, 1.0)
#: Of the cheap model in a cascade.
CHEAP_NOISE = 1.5
SEEDS = range(5)
STRATEGIES: Sequence[Strategy] = (
    Single(20),
    Single(100),
    Sliding(20, 10),
    Sliding(20, 10, early_stop=True),
    Sliding(10, 5),
    TopDown(20),
    Tournament(20),
    Cascade(20, "cheap", Single(100)),
)

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Walk:
    """One list ordered by one strategy. What the cheap model of a cascade reads is not counted."""

    order: list[int]
    windows: int
    rounds: int
    passages: int


@app.command()
def table(
    requests: Annotated[Path, typer.Option(help="RankLLM request JSONL.")],
    qrels: Annotated[Path, typer.Option(help="Judgements in TREC form.")],
    out: Annotated[Path, typer.Option(help="The Markdown file to write.")] = Path("docs/schedules.md"),
) -> None:
    """Simulate every schedule and write the table."""
    asked, judged = read_requests(requests), read_trec_qrels(qrels)
    grades: dict[str, dict[str, int]] = {}
    for qrel in judged:
        grades.setdefault(qrel.query_id, {})[qrel.doc_id] = qrel.relevance
    lines = [
        f"| schedule | windows | rounds | passages read | {' | '.join(f'noise {noise}' for noise in NOISES)} |",
        f"| --- | ---: | ---: | ---: | {' | '.join('---:' for _ in NOISES)} |",
    ]
    for strategy in STRATEGIES:
        walks = {noise: [_walks(strategy, asked, grades, noise, seed) for seed in SEEDS] for noise in NOISES}
        middle = [walk for by_query in walks[NOISES[1]] for walk in by_query.values()]
        cost = [fmean(getattr(walk, field) for walk in middle) for field in ("windows", "rounds", "passages")]
        found = [fmean(_ndcg(by_query, asked, judged) for by_query in walks[noise]) for noise in NOISES]
        lines.append(_row(strategy, [f"{value:.1f}" for value in cost] + [f"{value:.3f}" for value in found]))
    out.write_text(_PAGE.format(queries=len(asked), noise=NOISES[1], cheap=CHEAP_NOISE, table="\n".join(lines)))
    print("\n".join(lines))


def _walks(
    strategy: Strategy, asked: Sequence[Request], grades: Mapping[str, Mapping[str, int]], noise: float, seed: int
) -> dict[str, Walk]:
    rng = random.Random(seed)
    found = {}
    for request in asked:
        own = grades.get(request.query.query_id, {})
        relevance = [float(own.get(candidate.doc_id, 0)) for candidate in request.candidates]
        found[request.query.query_id] = _walk(strategy, relevance, noise, rng)
    return found


def _walk(strategy: Strategy, relevance: Sequence[float], noise: float, rng: random.Random) -> Walk:
    windows, rounds = list[Positions](), 0
    schedule = strategy.schedule(len(relevance))
    try:
        round_ = next(schedule)
        while True:
            if not round_.model:
                windows, rounds = [*windows, *round_.windows], rounds + 1
            spread = CHEAP_NOISE if round_.model else noise
            rankings = [
                WindowRanking(tuple(relevance[position] + rng.gauss(0, spread) for position in window))
                for window in round_.windows
            ]
            round_ = schedule.send(rankings)
    except StopIteration as finished:
        return Walk(finished.value, len(windows), rounds, sum(map(len, windows)))


def _ndcg(walks: Mapping[str, Walk], asked: Sequence[Request], judged: Sequence[Qrel]) -> float:
    ranked = {
        request.query.query_id: [
            ScoredDoc(request.candidates[position].doc_id, -float(rank))
            for rank, position in enumerate(walks[request.query.query_id].order)
        ]
        for request in asked
    }
    return measure([nDCG @ 10], judged, ranked).mean["nDCG@10"]


def _row(strategy: Strategy, cells: Sequence[str]) -> str:
    return f"| {strategy} | {' | '.join(cells)} |"


_PAGE = """# Schedules

What each schedule costs for 100 candidates, and the nDCG@10 it reaches with a simulated ranker: grade plus Gaussian
noise of the stated deviation, drawn anew in every window. TREC DL 2019, {queries} queries, BM25 top-100 (.506 as it
comes), mean of five seeds; costs at noise {noise}. A cascade's cheap model has noise {cheap} and reads all 100 in one
window of its own, which is not counted. Made by `python scripts/schedule_table.py`; no model ran.

{table}

Rounds have to wait for one another; the windows of a round run at the same time. Numbers of `top-down` and of the early
stop depend on the rankings.
"""


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
