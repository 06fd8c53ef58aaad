"""`eval-beir`: retrieves and reranks over an index of a collection in BEIR layout and measures the result.

rerank index --collection BEIR_DIR --out index
eval-beir --collection BEIR_DIR --index index --first-stage hybrid-rrf --ranker pe-rank --out results/hybrid-pe-rank
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from ir_measures import Qrel

from eval.answers import Answer, Reply
from eval.baselines import Oracle
from eval.data import read_beir_qrels, read_beir_queries
from eval.experiment import Arm, Judge, Result, collect, measure_all
from eval.feedback import MEASURES, FeedbackTrial, grades, publish_feedback
from eval.measures import BEIR, Run, without_own_documents
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
from eval.output import versions
from eval.publish import Choices, publish
from eval.report import FIRST_STAGE, ORACLE
from eval.systems import Baseline, System, open_systems, parse_systems
from rerank.cli import FirstModel, FirstStageName, Stride, WindowSize, console, run, strategy_message
from rerank.errors import ConfigError
from rerank.files import sha256_of_files
from rerank.types import CandidateSource, Query, ScoredDoc

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def evaluate(
    collection: Annotated[Path, typer.Option(help="Folder with corpus.jsonl, queries.jsonl and qrels/.")],
    out: OutOption,
    index: Annotated[
        Path | None, typer.Option(help="What `rerank index` made of it; not needed with --target.")
    ] = None,
    first_stage: Annotated[FirstStageName, typer.Option(help="The retriever.")] = FirstStageName.HYBRID_RRF,
    depth: Annotated[int, typer.Option(help="Candidates that the first stage hands over.")] = 100,
    split: Annotated[str, typer.Option(help="The judgements: qrels/SPLIT.tsv.")] = "test",
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
    concurrency: ConcurrencyOption = 1,
    seed: SeedOption = 0,
    margin: MarginOption = 0.0,
    plots: PlotsOption = True,
    feedback: Annotated[
        bool,
        typer.Option("--feedback", help="Also measure dense retrieval before and after it follows each ranking."),
    ] = False,
) -> None:
    """Retrieve, rerank and measure nDCG@10 and the like."""
    given = {name: str(value) for name, value in locals().items()}
    if index is None and not target:
        raise ConfigError("nothing to search in: give --index DIR, or --target HOST:PORT of a service that has one")
    if index is None and feedback:
        raise ConfigError("--feedback moves vectors in this process and needs the index too: give --index DIR")
    specs, judged = parse_systems(ranker or (), system or (), model), read_beir_qrels(collection, split)
    asked = _judged_queries(read_beir_queries(collection), judged)
    decisive: dict[str, object] = {
        "first_stage": first_stage.value,
        "depth": depth,
        "encoder": encoder,
        "strategy": given["strategy"],
        "window_size": window_size,
        "stride": stride,
        "first_model": first_model,
        "queries_sha256": sha256_of_files([collection / "queries.jsonl"]),
        "split": split,
        "versions": versions(),
    }
    options: dict[str, Any] = {"first_stage": f"FIRST_STAGE_{first_stage.name}", "depth": depth}
    schedule = strategy_message(strategy, window_size, stride, first_model=first_model)
    with open_systems(specs, template, target, judged, schedule, index, encoder) as systems:
        arms = [
            Arm(name, {**opened.settings, **decisive}, _asker(opened, asked, options))
            for name, opened in systems.items()
        ]
        answers = collect(arms, list(asked), out, concurrency, console)
    judge = Judge(BEIR, judged, lambda found: without_own_documents(judged, found))
    qrels_file = collection / "qrels" / f"{split}.tsv"
    results = measure_all(arms, answers, judge, out, given | {"qrels_sha256": sha256_of_files([qrels_file])})
    found = _first_stage(answers[arms[0].name])
    publish(
        f"{len(asked)} queries of {collection.name}, {first_stage}, depth {depth}",
        [*results, Result(FIRST_STAGE, judge.report(found))],
        Result(ORACLE, judge.report(_best(judged, found))),
        {},
        out,
        given | decisive,
        Choices(margin, seed, plots),
        console,
    )
    if index is not None and feedback:
        teachers: dict[str, Run] = {
            name: {answer.query_id: answer.reply.docs for answer in given_answers}
            for name, given_answers in answers.items()
        }
        trial = FeedbackTrial(index, asked, replace(judge, measures=MEASURES))
        publish_feedback(trial, teachers | {ORACLE: grades(judged, found)}, out, console)


def _judged_queries(queries: Iterable[Query], judged: Iterable[Qrel]) -> dict[str, Query]:
    judged_ids = {qrel.query_id for qrel in judged}
    return {query.query_id: query for query in queries if query.query_id in judged_ids}


def _asker(system: System, asked: Mapping[str, Query], options: Mapping[str, Any]) -> Callable[[str], Reply]:
    return partial(_ask, system, asked, options)


def _ask(system: System, asked: Mapping[str, Query], options: Mapping[str, Any], query_id: str) -> Reply:
    return system.search(asked[query_id], **options)


def _first_stage(answers: Iterable[Answer]) -> Run:
    """What the first stage found: the answers in the order in which they came in."""
    return {answer.query_id: _in_first_stage_order(answer.reply) for answer in answers}


def _in_first_stage_order(reply: Reply) -> list[ScoredDoc]:
    found = sorted(zip(reply.positions, reply.doc_ids, strict=True))
    return [ScoredDoc(doc_id, -float(position)) for position, doc_id in found]


def _best(judged: Iterable[Qrel], found: Run) -> Run:
    oracle = Baseline(Oracle(judged))
    return {
        query_id: oracle.rerank(Query("", query_id), [CandidateSource(doc.doc_id, "") for doc in docs]).docs
        for query_id, docs in found.items()
    }


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
