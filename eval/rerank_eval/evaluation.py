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
from rerank.errors import ConfigError
from rerank.types import CandidateSource, Query
from rerank_eval.measures import MAIN_MEASURE, Run
from rerank_eval.orders import UNORDERED, Order
from rerank_eval.overlap import check_names, check_responses
from rerank_eval.report import FIRST_STAGE, ORACLE, Report, write_report
from rerank_eval.results import SystemResult, measure_variants
from rerank_eval.run_files import write_text
from rerank_eval.runner import Responses, Variant, run_variants
from rerank_eval.settings import EvaluationSettings
from rerank_eval.sources import Search
from rerank_eval.specs import SystemSpec, parse_systems
from rerank_eval.systems import Oracle, System, open_systems
from rerank_eval.table import SUMMARY_FILE, Summary, summarize, summary_json, table
from rerank_eval.tasks import Task, open_tasks

_PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu", "pyserini", "ir-measures")


def run_evaluation(settings: EvaluationSettings) -> None:
    """Evaluates all systems on every dataset, and writes and prints the reports.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
        RerankError: a service refused a query; a further call resumes the run.
    """
    specs = parse_systems(settings.ranker, settings.system)
    tasks = open_tasks(settings)
    folders = _folders([task.name for task in tasks], settings.out)
    summaries = [_evaluate(task, specs, settings, out) for task, out in zip(tasks, folders, strict=True)]
    if len(summaries) > 1:
        overview = table({summary.dataset: [summary] for summary in summaries})
        write_text(settings.out / "report.md", f"# {len(summaries)} datasets\n\n{overview}\n")
        console.print(f"report of all datasets: {settings.out / 'report.md'}")


def _folders(datasets: Sequence[str], out: Path) -> list[Path]:
    """The folder of each dataset's results: `out` itself if there is only one dataset, else a folder inside it.

    Raises:
        ConfigError: two datasets have the same name.
    """
    if len(set(datasets)) != len(datasets):
        raise ConfigError(f"datasets {', '.join(datasets)}: two have the same name, and so the same result folder")
    # Names of ir_datasets contain slashes.
    return [out] if len(datasets) == 1 else [out / dataset.replace("/", "-") for dataset in datasets]


def _evaluate(task: Task, specs: Sequence[SystemSpec], settings: EvaluationSettings, out: Path) -> Summary:
    """Evaluates all systems on one dataset."""
    shared = {"encoder": settings.encoder, "versions": versions()}
    with open_systems(specs, settings, task.evaluator.qrels, task.index) as systems:
        variants = task.source.variants(systems, shared)
        responses = run_variants(variants, list(task.source.queries), out, settings.concurrency, console)
    notes = task.notes + _notes_on_search(task, systems, responses, settings.target)
    written = {**settings.as_strings(), "qrels_sha256": task.qrels_sha256}
    results = measure_variants(variants, responses, task.evaluator, out, written, notes)
    first_stage = task.source.first_stage(variants[0].order, responses[variants[0].name])
    report = _report(task, specs, settings, variants, results, first_stage)
    report = replace(report, settings={**report.settings, **shared, **task.source.fingerprint}, notes=notes)
    summary = summarize(report.dataset, report.title, report.results, report.seed, report.notes)
    write_text(out / SUMMARY_FILE, summary_json(summary))
    write_report(report, out, console)
    return summary


def _report(
    task: Task,
    specs: Sequence[SystemSpec],
    settings: EvaluationSettings,
    variants: Sequence[Variant],
    results: Sequence[SystemResult],
    first_stage: Run,
) -> Report:
    """The report of all systems on the first order, with the first stage and the oracle."""
    first_order = variants[0].order
    reported = [result for result, variant in zip(results, variants, strict=True) if variant.order == first_order]
    identity = next((first_order.label(spec.name) for spec in specs if spec.ranker == "identity"), "")
    if not identity:
        reported.append(SystemResult(FIRST_STAGE, task.evaluator.evaluate(first_stage)))
    return Report(
        task.name,
        task.title,
        reported,
        SystemResult(ORACLE, task.evaluator.evaluate(_oracle_run(task, first_stage))),
        settings.as_strings(),
        first_stage=identity or FIRST_STAGE,
        seed=settings.seed,
        **_by_order(task, [spec.name for spec in specs], variants, results),
    )


def _notes_on_search(task: Task, systems: Mapping[str, System], responses: Responses, target: str) -> tuple[str, ...]:
    """Notes on the index that a service searched. Raises: CollectionError when it is one of another collection."""
    if not isinstance(task.source, Search):
        return ()
    named = check_names(next(iter(systems.values())).fingerprint.get("searched"), task.name)
    if task.index is not None:
        return named
    found = [response for rows in responses.values() for response in rows]
    return named + check_responses(found, task.qrels, f"the service at {target}")


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


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages on which results depend."""
    installed = {"python": platform.python_version(), "rerank": __version__}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed
