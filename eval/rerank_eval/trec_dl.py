"""`eval-trec-dl`: reranks the candidates of request files, or of TREC runs, and measures the result.

eval-trec-dl --requests requests.jsonl --qrels qrels.txt --ranker pe-rank --out results/pe-rank
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from ir_measures import Qrel

from rerank.commands.cli import Preranker, Stride, WindowSize, console, run, strategy_message
from rerank.errors import ConfigError
from rerank.files import sha256_of_files
from rerank_eval.baselines import FirstStage, Oracle
from rerank_eval.candidates import candidates_of_run
from rerank_eval.data import read_requests, read_trec_qrels
from rerank_eval.datasets import Dataset, open_dataset
from rerank_eval.experiment import Arm, Judge, Result
from rerank_eval.measures import MAIN, TREC_DL
from rerank_eval.options import (
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
    parse_loads,
)
from rerank_eval.orders import ORIGINAL, Order, parse_orders
from rerank_eval.publish import Choices, folder_of_dataset, publish, publish_all
from rerank_eval.report import FIRST_STAGE, ORACLE, ByOrder
from rerank_eval.setup import Setup
from rerank_eval.systems import Baseline, parse_systems
from rerank_eval.table import Summary
from rerank_eval.task import Task, task_of

# Without markup: in help, [/STRATEGY] is text, and no long word is cut to fit a column.
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def evaluate(
    requests: Annotated[
        list[Path],
        typer.Option(help="RankLLM request JSONL: queries with their candidates; with --collection, a TREC run."),
    ],
    out: OutOption,
    qrels: Annotated[
        list[Path] | None,
        typer.Option(help="Judgements in TREC form, one file for each --requests; --collection brings its own."),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(help="Where the passages of a run are: a folder in BEIR layout, pydoc, or a name of ir_datasets."),
    ] = None,
    split: Annotated[str, typer.Option(help="Of a --collection in BEIR layout: qrels/SPLIT.tsv.")] = "test",
    ranker: RankerOption = None,
    system: SystemOption = None,
    model: ModelOption = "",
    template: TemplateOption = "",
    encoder: EncoderOption = "",
    target: TargetOption = "",
    strategy: StrategyOption = None,
    window_size: WindowSize = 0,
    stride: Stride = 0,
    preranker: Preranker = "",
    depth: Annotated[int, typer.Option(min=0, help="Candidates of each query that are reranked; 0: all.")] = 0,
    orders: Annotated[
        str, typer.Option(help="Orders in which systems get them: original,reversed,shuffled:COUNT.")
    ] = "original",
    concurrency: ConcurrencyOption = "1",
    seed: SeedOption = 0,
    margin: MarginOption = 0.0,
    plots: PlotsOption = True,
) -> None:
    """Rerank the candidates of request files or runs and measure nDCG@10 and the like."""
    given = {name: str(value) for name, value in locals().items()}
    setup = Setup(
        parse_systems(ranker or (), system or (), model),
        strategy_message(strategy, window_size, stride, preranker=preranker),
        template,
        encoder,
        target,
        parse_loads(concurrency),
        Choices(margin, seed, plots),
        given,
    )
    wanted = parse_orders(orders)
    sources = _sources(requests, qrels or (), collection or (), split, depth, seed)
    names = [source.name for source in sources]
    publish_all(
        [_evaluate(source, setup, wanted, folder_of_dataset(source.name, names, out)) for source in sources],
        out,
        console,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """Queries with candidates, and their judgements.

    Attributes:
        decisive: what decides which candidates they are.
        hashes: those of the judgements.
    """

    name: str
    title: str
    task: Task
    qrels: Sequence[Qrel]
    decisive: Mapping[str, object]
    hashes: Mapping[str, str]


def _sources(
    requests: Sequence[Path], qrels: Sequence[Path], collections: Sequence[str], split: str, depth: int, seed: int
) -> list[_Source]:
    """Reads all before anything is asked. Raises: ConfigError when it is not said what belongs to what."""
    for option, others in (("--qrels", qrels), ("--collection", collections)):
        if others and len(others) != len(requests):
            raise ConfigError(f"{len(requests)} --requests and {len(others)} {option}; give one for each, in one order")
    if not qrels and not collections:
        raise ConfigError("nothing to measure by: give --qrels FILE, or --collection NAME with judgements of its own")
    names = _names(requests)
    return [
        _source(
            name,
            path,
            qrels[place] if qrels else None,
            open_dataset(collections[place], split) if collections else None,
            depth,
            seed,
        )
        for place, (name, path) in enumerate(zip(names, requests, strict=True))
    ]


def _source(name: str, path: Path, qrels: Path | None, dataset: Dataset | None, depth: int, seed: int) -> _Source:
    given = candidates_of_run(path, dataset, depth) if dataset else read_requests(path)
    judged = read_trec_qrels(qrels) if qrels else (dataset.qrels if dataset else ())
    queries = {"queries_sha256": dataset.queries_sha256} if dataset else {}
    return _Source(
        name,
        f"{len(given)} queries of {name}/{path.name}, depth {depth or 'all'}",
        task_of(given, depth, seed),
        judged,
        {"depth": depth, "seed": seed, "requests_sha256": sha256_of_files([path])} | queries,
        {"qrels_sha256": sha256_of_files([qrels]) if qrels else dataset.qrels_sha256 if dataset else ""},
    )


def _names(requests: Sequence[Path]) -> list[str]:
    """Each after its folder; where folders are the same, after its file too."""
    folders = [path.absolute().parent.name for path in requests]
    if len(set(folders)) == len(folders):
        return folders
    return [f"{folder}-{path.stem}" for folder, path in zip(folders, requests, strict=True)]


def _evaluate(source: _Source, setup: Setup, orders: Sequence[Order], out: Path) -> Summary:
    task, judge = source.task, Judge(TREC_DL, source.qrels)
    decisive = {**setup.decisive, **source.decisive}
    with setup.opened(source.qrels) as systems:
        arms = [
            Arm(
                order.label(name),
                {**opened.settings, **decisive, "order": order.name},
                task.asker(opened, order),
                is_timed=order == ORIGINAL and setup.is_served(name),
            )
            for order in orders
            for name, opened in systems.items()
        ]
        answers = setup.answers(arms, list(task.requests), out)
    results = setup.measured(arms, answers, judge, out, source.hashes)
    stage, oracle = Baseline(FirstStage()), Baseline(Oracle(source.qrels))
    own = [] if setup.has_identity else [Result(FIRST_STAGE, task.report(stage, orders[0], judge))]
    return publish(
        source.name,
        source.title,
        [*results[: len(setup.specs)], *own],
        Result(ORACLE, task.report(oracle, orders[0], judge)),
        _by_order(results, task, judge, orders, list(systems)) if len(orders) > 1 else {},
        out,
        {**setup.given, **decisive},
        setup.choices,
        console,
    )


def _by_order(
    results: Sequence[Result], task: Task, judge: Judge, orders: Sequence[Order], systems: Sequence[str]
) -> ByOrder:
    """Mean nDCG@10 of every system on every order, and of the two that need not be asked."""
    means = {result.name: result.report.mean[MAIN] for result in results}
    unasked = {FIRST_STAGE: Baseline(FirstStage()), ORACLE: Baseline(Oracle(judge.qrels))}
    return {
        **{name: {o: task.report(system, o, judge).mean[MAIN] for o in orders} for name, system in unasked.items()},
        **{name: {order: means[order.label(name)] for order in orders} for name in systems},
    }


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
