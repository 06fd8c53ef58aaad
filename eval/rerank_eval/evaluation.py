"""The evaluation of systems on datasets: reads the lists, runs the systems, measures, compares, and reports."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rerank import __version__
from rerank.commands.run import console
from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel, grades_by_query
from rerank_eval.efficiency import efficiency, warnings
from rerank_eval.measures import Evaluator, Run, by_rank
from rerank_eval.overlap import check_doc_ids, check_names, uncovered
from rerank_eval.report import Report, SystemResult, write_report
from rerank_eval.run_files import trec_run, write_result, write_run
from rerank_eval.runner import Responses, Variant, run_variants, variant_folder
from rerank_eval.settings import ORACLE, BeirSettings, EvaluationSettings
from rerank_eval.systems import ServedSystem, SystemSpec, open_systems, parse_systems
from rerank_eval.table import write_tables
from rerank_eval.tasks import Task, open_tasks

#: The name of the row that shows the candidates as systems receive them.
FIRST_STAGE = "first stage"
_PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu", "pyserini", "ir-measures")
_FASTER = " (less with --precision auto, where the processor has bfloat16)"


def run_evaluation(settings: EvaluationSettings) -> list[Report]:
    """Evaluates all systems on every dataset, and writes, prints and returns the reports.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
        RerankError: a service refused a query; a further call resumes the run.
    """
    specs = parse_systems(settings.model)
    tasks = open_tasks(settings)
    folders = _folders([task.name for task in tasks], settings.out)
    reports = [_evaluate(task, specs, settings, out) for task, out in zip(tasks, folders, strict=True)]
    write_tables(reports, settings.out, console)
    return reports


def _folders(datasets: Sequence[str], out: Path) -> list[Path]:
    """The folder of each dataset's results: `out` itself if there is only one dataset, else a folder inside it.

    Raises:
        ConfigError: two datasets have the same name.
    """
    if len(set(datasets)) != len(datasets):
        raise ConfigError(f"datasets {', '.join(datasets)}: two have the same name, and so the same result folder")
    # Names of ir_datasets contain slashes.
    return [out] if len(datasets) == 1 else [out / dataset.replace("/", "-") for dataset in datasets]


def _evaluate(task: Task, specs: Sequence[SystemSpec], settings: EvaluationSettings, out: Path) -> Report:
    """Evaluates all systems on one dataset."""
    with open_systems(specs, settings, task.index) as systems:
        variants = list(_variants(task, systems))
        hint = _FASTER if settings.precision == "float32" else ""
        responses = run_variants(variants, list(task.queries), out, settings.concurrency, console, hint)
    first_stage = task.received(responses)
    notes = (*task.notes, *_notes_on_search(task, systems, first_stage, settings.target))
    notes += uncovered(first_stage, task.evaluator.qrels, task.rel)
    written = {**asdict(settings), "qrels_sha256": task.qrels_sha256}
    report = Report(
        dataset=task.name,
        title=task.title,
        results=(
            SystemResult(FIRST_STAGE, task.evaluator.evaluate(first_stage)),
            *measure_variants(variants, responses, task.evaluator, out, written, notes),
        ),
        upper_bound=SystemResult(ORACLE, task.evaluator.evaluate(best_order(task.evaluator.qrels, first_stage))),
        rel=task.rel,
        notes=notes,
    )
    write_result(out / "first-stage.trec", trec_run(task.evaluator.counted(first_stage), tag="first-stage"))
    write_report(report, out, console)
    if isinstance(settings, BeirSettings) and settings.feedback and task.index:
        from rerank_eval.feedback import evaluate_feedback  # imports torch

        evaluate_feedback(task, {name: responses[name] for name in systems}, settings, task.index, out, console)
    return report


def _variants(task: Task, systems: Mapping[str, ServedSystem]) -> Iterator[Variant]:
    """All systems, then those that search a second time."""
    shared = {"versions": versions(), **task.fingerprint}
    for name, system in systems.items():
        yield Variant(name, {**system.fingerprint, **shared}, partial(task.ask, system))
    for name, system in systems.items() if task.feedback else ():
        if system.fingerprint["ranker"] != "identity":  # it would only append the passages of the second search
            fingerprint = {**system.fingerprint, **shared, "feedback": task.feedback}
            yield Variant(f"{name}.feedback", fingerprint, partial(task.ask, system, feedback=task.feedback))


def measure_variants(
    variants: Sequence[Variant],
    responses: Responses,
    evaluator: Evaluator,
    out: Path,
    settings: Mapping[str, object],
    notes: Sequence[str] = (),
) -> list[SystemResult]:
    """Measures every variant and writes its run.trec and measures.json, the latter with `settings` and `notes`.

    Raises:
        ConfigError: the files cannot be written.
    """
    results = []
    for variant in variants:
        given = responses[variant.name]
        run = evaluator.counted({response.query_id: response.reply.docs for response in given})
        metrics = evaluator.evaluate(run)
        folder = variant_folder(variant.name, len(variants), out)
        write_run(folder, run, metrics, {**settings, **variant.fingerprint}, notes)
        cost = efficiency(given)
        results.append(SystemResult(variant.name, metrics, cost, list(warnings(given)), variant.fingerprint))
    return results


def _notes_on_search(task: Task, systems: Mapping[str, ServedSystem], first_stage: Run, target: str) -> tuple[str, ...]:
    """Notes on the index that a service searched. Raises: CollectionError when it is one of another collection."""
    if task.lists is not None:
        return ()
    if task.index is None:
        found = {doc.doc_id for docs in first_stage.values() for doc in docs}
        check_doc_ids(found, task.qrels, f"passages found by the service at {target}")
    return check_names(next(iter(systems.values())).fingerprint.get("searched"), task.name)


def best_order(qrels: Iterable[Qrel], first_stage: Run) -> Run:
    """The best order of the same candidates; candidates of equal grades keep their order."""
    grades = grades_by_query(qrels)
    run = {}
    for query_id, docs in first_stage.items():
        judged = grades.get(query_id, {})
        run[query_id] = by_rank(sorted((doc.doc_id for doc in docs), key=lambda doc_id: -judged.get(doc_id, 0)))
    return run


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that results depend on."""
    return {"python": platform.python_version(), "rerank": __version__} | dict(_installed(_PACKAGES))


def _installed(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for package in packages:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
