"""The evaluation of systems on datasets: runs them, measures their rankings, and writes the reports."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rerank import __version__
from rerank.commands.run import console
from rerank.types import CandidateSource, Query
from rerank_eval.cases import CaseFinder
from rerank_eval.measures import MAIN_MEASURE, Run
from rerank_eval.orders import UNORDERED, Order
from rerank_eval.overlap import check_names, check_responses
from rerank_eval.report import FIRST_STAGE, ORACLE, Report
from rerank_eval.report_writer import dataset_folder, write_overview, write_report
from rerank_eval.results import SystemResult, measure_variants
from rerank_eval.runner import Responses, Variant, run_variants
from rerank_eval.settings import BeirSettings, EvaluationSettings
from rerank_eval.sources import Search
from rerank_eval.specs import SystemSpec, parse_systems
from rerank_eval.systems import Oracle, System, open_systems
from rerank_eval.table import Summary
from rerank_eval.tasks import Task, open_tasks

_PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu", "pyserini", "ir-measures")


def run_evaluation(settings: EvaluationSettings) -> None:
    """Evaluates all systems on every dataset, and writes and prints the reports.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
        RerankError: a service refused a query; a further call resumes the run.
    """
    specs, loads = parse_systems(settings.ranker, settings.system, settings.model), settings.loads
    tasks = open_tasks(settings)
    names = [task.name for task in tasks]
    folders = [dataset_folder(name, names, settings.out) for name in names]
    summaries = [_evaluate(task, specs, loads, settings, out) for task, out in zip(tasks, folders, strict=True)]
    write_overview(summaries, settings.out, console)


def _evaluate(
    task: Task, specs: Sequence[SystemSpec], loads: Sequence[int], settings: EvaluationSettings, out: Path
) -> Summary:
    """Evaluates all systems on one dataset."""
    shared = {"encoder": settings.encoder, "order_prior": settings.order_prior, "versions": versions()}
    with open_systems(specs, settings, task.evaluator.qrels, task.index) as systems:
        variants = task.source.variants(systems, shared)
        responses = run_variants(variants, list(task.source.queries), out, loads, console)
    measured = responses[loads[0]]
    notes = task.notes + _notes_on_search(task, systems, measured, settings.targets)
    written = {**settings.as_strings(), "qrels_sha256": task.qrels_sha256}
    results = measure_variants(variants, responses, task.evaluator, out, written, notes)
    first_stage = task.source.first_stage(variants[0].order, measured[variants[0].name])
    report = _report(task, specs, settings, variants, results, measured, first_stage)
    report = replace(report, settings={**report.settings, **shared, **task.source.fingerprint}, notes=notes)
    summary = write_report(report, out, settings.plots, console)
    if isinstance(settings, BeirSettings) and settings.feedback and task.index:
        runs = {name: {row.query_id: row.ranking.docs for row in measured[name]} for name in systems}
        _evaluate_feedback(task, task.index, runs, first_stage, settings.seed, out, notes)
    return summary


def _report(
    task: Task,
    specs: Sequence[SystemSpec],
    settings: EvaluationSettings,
    variants: Sequence[Variant],
    results: Sequence[SystemResult],
    responses: Responses,
    first_stage: Run,
) -> Report:
    """The report of all systems on the first order, with the first stage and the oracle."""
    first_order = variants[0].order
    reported = [result for result, variant in zip(results, variants, strict=True) if variant.order == first_order]
    finder = CaseFinder(task.evaluator, first_stage, task.source.queries, task.source.texts)
    cases = finder.by_system(reported, responses)
    identity = next((first_order.label(spec.name) for spec in specs if spec.ranker == "identity"), "")
    if not identity:
        reported.append(SystemResult(FIRST_STAGE, finder.metrics))
    return Report(
        task.name,
        task.title,
        reported,
        SystemResult(ORACLE, task.evaluator.evaluate(_oracle_run(task, first_stage))),
        settings.as_strings(),
        first_stage=identity or FIRST_STAGE,
        margin=settings.margin,
        seed=settings.seed,
        cases=cases,
        **_by_order(task, [spec.name for spec in specs], variants, results),
    )


def _notes_on_search(
    task: Task, systems: Mapping[str, System], responses: Responses, targets: Sequence[str]
) -> tuple[str, ...]:
    """Notes on the index that a service searched. Raises: CollectionError when it is one of another collection."""
    if not isinstance(task.source, Search):
        return ()
    named = check_names(next(iter(systems.values())).fingerprint.get("searched"), task.name)
    if task.index is not None:
        return named
    found = [response for rows in responses.values() for response in rows]
    return named + check_responses(found, task.qrels, f"the service at {', '.join(targets)}")


def _oracle_run(task: Task, first_stage: Run) -> Run:
    """The best order of the same candidates."""
    oracle = Oracle(task.evaluator.qrels)
    return {
        query_id: oracle.rerank(Query("", query_id), [CandidateSource(doc.doc_id) for doc in docs]).docs
        for query_id, docs in first_stage.items()
    }


def _by_order(
    task: Task, systems: Sequence[str], variants: Sequence[Variant], results: Sequence[SystemResult]
) -> dict[str, Any]:
    """The parts of a report that compare the orders of the candidates; none for one order."""
    orders = list(dict.fromkeys(variant.order for variant in variants))
    if len(orders) < 2:
        return {}
    by_name = {result.name: result for result in results}
    first_stages = {order: task.source.first_stage(order, ()) for order in orders}
    scores: dict[str, Mapping[Order, float]] = {
        FIRST_STAGE: {order: _score(task, run) for order, run in first_stages.items()},
        ORACLE: {order: _score(task, _oracle_run(task, run)) for order, run in first_stages.items()},
    }
    for name in systems:
        scores[name] = {order: by_name[order.label(name)].metrics.mean[MAIN_MEASURE] for order in orders}
    unordered = [
        (by_name[order.label(name)], by_name[UNORDERED.label(name)])
        for name in systems
        for order in orders
        if UNORDERED in orders and order.is_ordered
    ]
    return {"by_order": scores, "unordered": unordered}


def _score(task: Task, run: Run) -> float:
    return task.evaluator.evaluate(run).mean[MAIN_MEASURE]


def _evaluate_feedback(
    task: Task, index: Path, runs: Mapping[str, Run], first_stage: Run, seed: int, out: Path, notes: Sequence[str]
) -> None:
    """Evaluates dense retrieval after it follows every system, and after it follows the oracle."""
    from rerank_eval import feedback  # imports torch, which only feedback needs

    teachers = {**runs, ORACLE: feedback.teacher_of_grades(task.qrels, first_stage)}
    evaluator = replace(task.evaluator, measures=feedback.FEEDBACK_MEASURES)
    experiment = feedback.FeedbackExperiment(index, task.source.queries, evaluator)
    feedback.write_feedback_report(experiment, teachers, out, seed, console, notes)


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages on which results depend."""
    installed = {"python": platform.python_version(), "rerank": __version__}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed
