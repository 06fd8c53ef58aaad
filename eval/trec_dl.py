"""`eval-trec-dl`: reranks the candidates of a request file and measures the result.

eval-trec-dl --requests requests.jsonl --qrels qrels.txt --ranker pe-rank --out results/pe-rank
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eval.answers import Reply
from eval.baselines import FirstStage, Oracle
from eval.data import Request, read_requests, read_trec_qrels
from eval.experiment import Arm, Judge, Result, collect, measure_all
from eval.measures import MAIN, TREC_DL, Report
from eval.options import (
    ConcurrencyOption,
    EncoderOption,
    MarginOption,
    ModelOption,
    OutOption,
    PlotsOption,
    RankerOption,
    SeedOption,
    StrategyOption,
    SystemOption,
    TargetOption,
    TemplateOption,
)
from eval.orders import Order, parse_orders
from eval.output import versions
from eval.publish import Choices, publish
from eval.report import FIRST_STAGE, ORACLE
from eval.systems import Baseline, System, open_systems, parse_systems
from rerank.cli import FirstModel, Stride, WindowSize, console, run, strategy_message
from rerank.files import sha256_of_files

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def evaluate(
    requests: Annotated[Path, typer.Option(help="RankLLM request JSONL: queries with their candidates.")],
    qrels: Annotated[Path, typer.Option(help="Judgements in TREC form.")],
    out: OutOption,
    ranker: RankerOption = None,
    system: SystemOption = None,
    model: ModelOption = "",
    template: TemplateOption = "",
    encoder: EncoderOption = "",
    target: TargetOption = "",
    strategy: StrategyOption = None,
    window_size: WindowSize = 0,
    stride: Stride = 0,
    first_model: FirstModel = "",
    depth: Annotated[int, typer.Option(min=0, help="Candidates of each query that are reranked; 0: all.")] = 0,
    orders: Annotated[
        str, typer.Option(help="Orders in which systems get them: original,reversed,shuffled:COUNT.")
    ] = "original",
    concurrency: ConcurrencyOption = 1,
    seed: SeedOption = 0,
    margin: MarginOption = 0.0,
    plots: PlotsOption = True,
) -> None:
    """Rerank the candidates of a request file and measure nDCG@10 and the like."""
    given = {name: str(value) for name, value in locals().items()}
    specs, wanted = parse_systems(ranker or (), system or (), model), parse_orders(orders)
    judged, asked = read_trec_qrels(qrels), _cut(read_requests(requests), depth)
    decisive = {
        "encoder": encoder,
        "strategy": given["strategy"],
        "window_size": window_size,
        "stride": stride,
        "first_model": first_model,
        "depth": depth,
        "seed": seed,
        "requests_sha256": sha256_of_files([requests]),
        "versions": versions(),
    }
    schedule = strategy_message(strategy, window_size, stride, first_model=first_model)
    task = _Task({request.query.query_id: request for request in asked}, seed)
    with open_systems(specs, template, target, judged, schedule, encoder=encoder) as systems:
        arms = [
            Arm(order.label(name), {**opened.settings, **decisive, "order": order.name}, task.asker(opened, order))
            for order in wanted
            for name, opened in systems.items()
        ]
        answers = collect(arms, list(task.requests), out, concurrency, console)
    judge = Judge(TREC_DL, judged)
    results = measure_all(arms, answers, judge, out, given | {"qrels_sha256": sha256_of_files([qrels])})
    means = {result.name: result.report.mean[MAIN] for result in results}
    stage, oracle = Baseline(FirstStage()), Baseline(Oracle(judged))
    by_order = {
        FIRST_STAGE: {order: task.report(stage, order, judge).mean[MAIN] for order in wanted},
        ORACLE: {order: task.report(oracle, order, judge).mean[MAIN] for order in wanted},
        **{name: {order: means[order.label(name)] for order in wanted} for name in systems},
    }
    publish(
        f"{len(asked)} queries of {requests.parent.name}/{requests.name}",
        [*results[: len(specs)], Result(FIRST_STAGE, task.report(stage, wanted[0], judge))],
        Result(ORACLE, task.report(oracle, wanted[0], judge)),
        by_order if len(wanted) > 1 else {},
        out,
        given | decisive,
        Choices(margin, seed, plots),
        console,
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """The requests by query_id, and how each is put to a system."""

    requests: Mapping[str, Request]
    seed: int

    def asker(self, system: System, order: Order) -> Callable[[str], Reply]:
        return partial(self._ask, system, order)

    def _ask(self, system: System, order: Order, query_id: str) -> Reply:
        request = self.requests[query_id]
        positions = order.permutation(len(request.candidates), query_id, self.seed)
        reply = system.rerank(request.query, [request.candidates[position] for position in positions])
        return replace(reply, positions=tuple(positions[place] for place in reply.positions))

    def report(self, system: Baseline, order: Order, judge: Judge) -> Report:
        """Of a system that costs nothing to ask."""
        return judge.report({query_id: self._ask(system, order, query_id).docs for query_id in self.requests})


def _cut(requests: Sequence[Request], depth: int) -> list[Request]:
    return [replace(request, candidates=request.candidates[: depth or None]) for request in requests]


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
