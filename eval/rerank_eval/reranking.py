"""Evaluation of reranking: systems rerank the candidates of request files or TREC runs, in one or several orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rerank.commands.run import console
from rerank.errors import ConfigError
from rerank.files import sha256_of_files
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.requests import read_requests
from rerank_eval.baselines import FirstStageOrder, Oracle
from rerank_eval.candidate_lists import CandidateLists, in_index, with_repaired_texts, without_scores
from rerank_eval.candidates import candidates_of_run
from rerank_eval.cases import CaseFinder
from rerank_eval.datasets import Dataset, open_dataset
from rerank_eval.experiment import Experiment
from rerank_eval.measures import MAIN_MEASURE, TREC_DL, Evaluator
from rerank_eval.orders import ORIGINAL, UNORDERED, Order, parse_orders
from rerank_eval.overlap import Judgements, check_requests, judgements_of
from rerank_eval.report import FIRST_STAGE, ORACLE, Evaluation, ScoresByOrder
from rerank_eval.report_writer import dataset_folder, write_overview
from rerank_eval.results import Result
from rerank_eval.runner import Variant
from rerank_eval.systems import Baseline, System
from rerank_eval.table import Summary
from rerank_eval.trec_dl import TrecDLSettings


def evaluate_reranking(settings: TrecDLSettings) -> None:
    """Evaluates all systems on every dataset, and writes and prints the reports.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
        RerankError: a service refused a query; a further call resumes the run.
    """
    experiment = Experiment.from_settings(settings)
    orders = parse_orders(settings.orders)
    datasets = _datasets(settings)
    names = [dataset.name for dataset in datasets]
    summaries = [
        _evaluate(dataset, experiment, orders, dataset_folder(dataset.name, names, settings.out), settings.index)
        for dataset in datasets
    ]
    write_overview(summaries, settings.out, console)


@dataclass(frozen=True, slots=True)
class _RerankingDataset:
    """Candidate lists with their judgements.

    Attributes:
        qrels_sha256: of all judgements, also those of queries that are not asked.
        fingerprint: the settings that decide the candidates.
    """

    name: str
    title: str
    lists: CandidateLists
    judgements: Judgements
    qrels_sha256: str
    fingerprint: Mapping[str, object]


def _datasets(settings: TrecDLSettings) -> list[_RerankingDataset]:
    """Reads all datasets before the first query runs."""
    requests, qrels, collections = settings.requests, settings.qrels, settings.collection
    for flag, values in (("--qrels", qrels), ("--collection", collections)):
        if values and len(values) != len(requests):
            raise ConfigError(
                f"{len(requests)} --requests and {len(values)} {flag}; give one for each --requests, in the same order"
            )
    if settings.index and len(collections) != 1:
        raise ConfigError(f"--index has the vectors of one --collection, and there are {len(collections)}; give one")
    if not qrels and not collections:
        raise ConfigError("no judgements: give --qrels FILE, or --collection NAME of a collection that has some")
    return [
        _dataset(
            name,
            path,
            qrels[number] if qrels else None,
            open_dataset(collections[number], settings.split) if collections else None,
            settings,
        )
        for number, (name, path) in enumerate(zip(_names(requests), requests, strict=True))
    ]


def _dataset(
    name: str, path: Path, qrels_file: Path | None, collection: Dataset | None, settings: TrecDLSettings
) -> _RerankingDataset:
    unjudged: Sequence[str] = ()
    if collection:
        requests, unjudged = candidates_of_run(path, collection, settings.depth)
    else:
        requests = read_requests(path)
    fingerprint = {"depth": settings.depth, "seed": settings.seed, "requests_sha256": sha256_of_files([path])}
    if settings.repair_texts:
        requests = [with_repaired_texts(request) for request in requests]
        fingerprint["repair_texts"] = True
    if settings.index:
        requests = [in_index(request) for request in requests]
        fingerprint["in_index"] = True
    if settings.without_scores:
        requests = [without_scores(request) for request in requests]
        fingerprint["without_scores"] = True
    qrels: Sequence[Qrel] = ()
    qrels_sha256 = ""
    if collection:
        fingerprint["queries_sha256"] = collection.queries_sha256
        qrels, qrels_sha256 = collection.qrels, collection.qrels_sha256
    if qrels_file:
        qrels, qrels_sha256 = read_qrels(qrels_file), sha256_of_files([qrels_file])
    asked = [*(row.query.query_id for row in requests), *unjudged]
    judgements = judgements_of(asked, qrels, str(path), settings.only_asked)
    lists = CandidateLists.of_requests(requests, settings.depth, settings.seed)
    check_requests(lists.requests.values(), qrels, str(path))
    return _RerankingDataset(
        name,
        f"{len(requests)} queries of {name}/{path.name}, depth {settings.depth or 'all'}",
        lists,
        judgements,
        qrels_sha256,
        fingerprint,
    )


def _names(requests: Sequence[Path]) -> list[str]:
    """The name of each file's folder; with the file's own name where two folders have the same."""
    folders = [path.absolute().parent.name for path in requests]
    if len(set(folders)) == len(folders):
        return folders
    return [f"{folder}-{path.stem}" for folder, path in zip(folders, requests, strict=True)]


def _evaluate(
    dataset: _RerankingDataset, experiment: Experiment, orders: Sequence[Order], out: Path, index: Path | None
) -> Summary:
    fingerprint = {**experiment.fingerprint, **dataset.fingerprint}
    lists, qrels = dataset.lists, dataset.judgements.qrels
    evaluator, notes = Evaluator(TREC_DL, qrels), dataset.judgements.notes
    with experiment.open_systems(qrels, index) as systems:
        variants = _variants(systems, lists, orders, experiment, fingerprint)
        responses = experiment.run(variants, list(lists.requests), out)
    results = experiment.measure(variants, responses, evaluator, out, dataset.qrels_sha256, notes)
    reported = results[: len(systems)]  # those on the first order
    first_stage = lists.run(Baseline(FirstStageOrder()), orders[0])
    finder = CaseFinder(evaluator, first_stage, lists.query_texts, lists.texts)
    if not experiment.has_identity:
        reported.append(Result(FIRST_STAGE, finder.metrics))
    upper_bound = Result(ORACLE, evaluator.evaluate(lists.run(Baseline(Oracle(qrels)), orders[0])))
    evaluation = Evaluation(
        dataset.name,
        dataset.title,
        reported,
        upper_bound,
        {**experiment.settings.as_strings(), **fingerprint},
        margin=experiment.settings.margin,
        seed=experiment.settings.seed,
        notes=notes,
        cases=finder.by_system(results[: len(systems)], responses[experiment.loads[0]]),
        by_order=_scores_by_order(results, lists, evaluator, orders, list(systems)) if len(orders) > 1 else {},
        unordered=_pairs_with_unordered(results, orders, list(systems)),
    )
    return experiment.report(evaluation, out)


def _variants(
    systems: Mapping[str, System],
    lists: CandidateLists,
    orders: Sequence[Order],
    experiment: Experiment,
    fingerprint: Mapping[str, object],
) -> list[Variant]:
    """Every system with every order; all systems of the first order come first."""
    return [
        Variant(
            order.label(name),
            {**system.fingerprint, **fingerprint, "order": order.name},
            lists.reranker(system, order),
            is_timed=order == ORIGINAL and experiment.is_served(name),
        )
        for order in orders
        for name, system in systems.items()
    ]


def _pairs_with_unordered(
    results: Sequence[Result], orders: Sequence[Order], systems: Sequence[str]
) -> list[tuple[Result, Result]]:
    """Each system on an order, and on the unordered list; none if that is not among the orders."""
    by_name = {result.name: result for result in results}
    ordered = [order for order in orders if order.is_ordered]
    return [
        (by_name[order.label(name)], by_name[UNORDERED.label(name)])
        for name in systems
        for order in ordered
        if UNORDERED in orders
    ]


def _scores_by_order(
    results: Sequence[Result],
    lists: CandidateLists,
    evaluator: Evaluator,
    orders: Sequence[Order],
    systems: Sequence[str],
) -> ScoresByOrder:
    """Mean nDCG@10 on every order: of the first stage, of the oracle and of every system."""
    means = {result.name: result.metrics.mean[MAIN_MEASURE] for result in results}
    scores: dict[str, Mapping[Order, float]] = {}
    for name, baseline in {FIRST_STAGE: Baseline(FirstStageOrder()), ORACLE: Baseline(Oracle(evaluator.qrels))}.items():
        scores[name] = {order: evaluator.evaluate(lists.run(baseline, order)).mean[MAIN_MEASURE] for order in orders}
    return scores | {name: {order: means[order.label(name)] for order in orders} for name in systems}
