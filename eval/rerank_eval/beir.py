"""`eval-beir`: retrieves and reranks over an index of a collection in BEIR layout and measures the result.

rerank index --collection BEIR_DIR --out index
eval-beir --collection BEIR_DIR --index index --first-stage hybrid-rrf --ranker pe-rank --out results/hybrid-pe-rank
eval-beir --collection BEIR_DIR --run run.trec --ranker first --out results/first
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from ir_measures import Qrel

from rerank.commands.cli import Preranker, Stride, WindowSize, console, feedback_message, run, strategy_message
from rerank.errors import ConfigError
from rerank.files import sha256_of_files
from rerank.types import CandidateSource, FeedbackMethod, FirstStage, Query, ScoredDoc
from rerank_eval.answers import Answer, Reply
from rerank_eval.baselines import Oracle
from rerank_eval.candidates import candidates_of_prebuilt, candidates_of_run
from rerank_eval.datasets import Dataset, open_dataset
from rerank_eval.experiment import Arm, Judge, Result
from rerank_eval.feedback import MEASURES, FeedbackTrial, grades, publish_feedback
from rerank_eval.measures import BEIR, Run, without_own_documents
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
from rerank_eval.orders import ORIGINAL
from rerank_eval.publish import Choices, folder_of_dataset, publish, publish_all
from rerank_eval.report import FIRST_STAGE, ORACLE
from rerank_eval.setup import Setup
from rerank_eval.systems import Baseline, System, parse_systems
from rerank_eval.table import Summary
from rerank_eval.task import task_of

# Without markup: in help, [/STRATEGY] is text, and no long word is cut to fit a column.
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def evaluate(
    collection: Annotated[
        list[str],
        typer.Option(
            help="Folder with corpus.jsonl, queries.jsonl and qrels/; pydoc; or a name of ir_datasets. Repeatable."
        ),
    ],
    out: OutOption,
    index: Annotated[
        list[Path] | None,
        typer.Option(help="What `rerank index` made of it, one for each collection; not needed with --target."),
    ] = None,
    run_file: Annotated[
        list[Path] | None, typer.Option("--run", help="Instead of an index: a TREC run with the candidates.")
    ] = None,
    prebuilt: Annotated[
        list[str] | None, typer.Option(help="Instead of an index: BM25 over a prebuilt index of Pyserini, by its name.")
    ] = None,
    first_stage: Annotated[FirstStage, typer.Option(help="The retriever.")] = FirstStage.HYBRID_RRF,
    depth: Annotated[int, typer.Option(min=1, help="Candidates that the first stage hands over.")] = 100,
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
    preranker: Preranker = "",
    concurrency: ConcurrencyOption = "1",
    seed: SeedOption = 0,
    margin: MarginOption = 0.0,
    plots: PlotsOption = True,
    feedback: Annotated[
        bool,
        typer.Option(
            "--feedback",
            help="Also with relevance feedback: served systems search a second time, and dense retrieval is measured "
            "before and after it follows each ranking.",
        ),
    ] = False,
) -> None:
    """Retrieve, rerank and measure nDCG@10 and the like."""
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
    stages = _stages(len(collection), index or (), run_file or (), prebuilt or (), target)
    if feedback and not all(isinstance(stage, Path) for stage in stages):
        raise ConfigError("--feedback moves vectors in this process and needs the index too: give --index DIR")
    opened = [open_dataset(name, split) for name in collection]
    names = [dataset.name for dataset in opened]
    asked = _Asked(first_stage, depth, feedback)
    publish_all(
        [
            _evaluate(dataset, stage, asked, setup, folder_of_dataset(dataset.name, names, out))
            for dataset, stage in zip(opened, stages, strict=True)
        ],
        out,
        console,
    )


@dataclass(frozen=True, slots=True)
class _RunFile:
    path: Path


@dataclass(frozen=True, slots=True)
class _Prebuilt:
    name: str


#: Where the candidates of a collection come from: an index of ours, the index of the target (None), or a given list.
_Stage = Path | _RunFile | _Prebuilt | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What Search is asked for."""

    first_stage: FirstStage
    depth: int
    feedback: bool

    @property
    def options(self) -> dict[str, Any]:
        return {"first_stage": f"FIRST_STAGE_{self.first_stage.name}", "depth": self.depth}

    @property
    def feedback_options(self) -> dict[str, Any]:
        return self.options | {"feedback": feedback_message(FeedbackMethod.WEIGHTED_RANKNET)}


def _stages(
    collections: int, indexes: Sequence[Path], runs: Sequence[Path], prebuilt: Sequence[str], target: str
) -> Sequence[_Stage]:
    """One for each collection. Raises: ConfigError when it is not said which, or said twice."""
    kinds: list[Sequence[_Stage]] = [indexes, [_RunFile(path) for path in runs], [_Prebuilt(name) for name in prebuilt]]
    named = [kind for kind in kinds if kind]
    if not named and target and collections == 1:
        return [None]
    if not named:
        raise ConfigError(
            "nothing to search in: give --index DIR, --run FILE or --prebuilt NAME for each collection, or --target "
            "HOST:PORT of a service that has the one collection"
        )
    if len(named) > 1 or len(named[0]) != collections:
        raise ConfigError(
            f"{collections} collections, {len(indexes)} --index, {len(runs)} --run, {len(prebuilt)} --prebuilt; give "
            "one of the three for each collection, in one order"
        )
    return named[0]


def _evaluate(dataset: Dataset, stage: _Stage, asked: _Asked, setup: Setup, out: Path) -> Summary:
    index = stage if isinstance(stage, Path) else None
    with setup.opened(dataset.qrels, index) as systems:
        arms, query_ids, origin = (
            _searching(systems, dataset, asked, setup)
            if stage is None or isinstance(stage, Path)
            else _reranking(systems, dataset, stage, asked, setup)
        )
        answers = setup.answers(arms, query_ids, out)
    judge = Judge(BEIR, dataset.qrels, lambda found: without_own_documents(dataset.qrels, found))
    results = setup.measured(arms, answers, judge, out, {"qrels_sha256": dataset.qrels_sha256})
    given = answers[setup.loads[0]]
    found = _first_stage(given[arms[0].name])
    own = [] if setup.has_identity else [Result(FIRST_STAGE, judge.report(found))]
    summary = publish(
        dataset.name,
        f"{len(query_ids)} queries of {dataset.name}, {origin}, depth {asked.depth}",
        [*results, *own],
        Result(ORACLE, judge.report(_best(dataset.qrels, found))),
        {},
        out,
        {**setup.given, **setup.decisive},
        setup.choices,
        console,
    )
    if index is not None and asked.feedback:
        plain = [name for name in given if not name.endswith(_WITH_FEEDBACK)]
        teachers: dict[str, Run] = {name: {one.query_id: one.reply.docs for one in given[name]} for name in plain}
        trial = FeedbackTrial(index, dataset.queries, replace(judge, measures=MEASURES))
        publish_feedback(trial, teachers | {ORACLE: grades(dataset.qrels, found)}, out, setup.choices.seed, console)
    return summary


#: Ends the name of a system that is asked with relevance feedback.
_WITH_FEEDBACK = ".feedback"

#: Arms, the queries that they are asked, and where the candidates come from, in words.
_Plan = tuple[list[Arm], list[str], str]


def _searching(systems: Mapping[str, System], dataset: Dataset, asked: _Asked, setup: Setup) -> _Plan:
    """A service retrieves; where feedback is wanted and a vector there to move, once more for every model."""
    decisive = {
        **setup.decisive,
        "first_stage": asked.first_stage.value,
        "depth": asked.depth,
        "queries_sha256": dataset.queries_sha256,
    }
    arms = [
        Arm(
            name,
            {**opened.settings, **decisive},
            _asker(opened, dataset.queries, asked.options),
            setup.is_served(name),
        )
        for name, opened in systems.items()
    ]
    if asked.feedback and asked.first_stage is not FirstStage.BM25:
        arms += [
            Arm(
                name + _WITH_FEEDBACK,
                {**opened.settings, **decisive, "feedback": True},
                _asker(opened, dataset.queries, asked.feedback_options),
            )
            for name, opened in systems.items()
            if setup.is_served(name) and opened.settings["ranker"] != "identity"  # appends what it finds
        ]
    return arms, list(dataset.queries), asked.first_stage.value


def _reranking(
    systems: Mapping[str, System], dataset: Dataset, stage: _RunFile | _Prebuilt, asked: _Asked, setup: Setup
) -> _Plan:
    """The candidates are at hand."""
    if isinstance(stage, _RunFile):
        requests = candidates_of_run(stage.path, dataset, asked.depth)
        origin, source = f"run {stage.path.name}", {"run_sha256": sha256_of_files([stage.path])}
    else:
        requests = candidates_of_prebuilt(stage.name, dataset, asked.depth)
        origin, source = f"BM25 on {stage.name}", {"prebuilt": stage.name}
    task = task_of(requests, asked.depth, setup.choices.seed)
    decisive = {**setup.decisive, **source, "depth": asked.depth, "queries_sha256": dataset.queries_sha256}
    arms = [
        Arm(name, {**opened.settings, **decisive}, task.asker(opened, ORIGINAL), setup.is_served(name))
        for name, opened in systems.items()
    ]
    return arms, list(task.requests), origin


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
