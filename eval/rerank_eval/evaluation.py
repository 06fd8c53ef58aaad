"""The evaluation of systems on datasets: reads the lists, runs the systems, measures, compares, and reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rerank.commands.run import console
from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel, grades_by_query
from rerank_eval.datasets import Dataset, open_datasets
from rerank_eval.measures import Response, Run, by_rank, efficiency, warnings
from rerank_eval.overlap import check_doc_ids, notes_on_index_name, notes_on_missing_candidates
from rerank_eval.report import Report, SystemResult, write_report, write_tables
from rerank_eval.runs import run_systems, system_folder, trec_run, write_result, write_run
from rerank_eval.settings import ORACLE, BeirSettings, CommandSettings
from rerank_eval.systems import System, open_systems, parse_systems

#: The name of the row that shows the candidates as systems receive them.
FIRST_STAGE = "first stage"
_FASTER = " (less with --precision auto, where the processor has bfloat16)"


def run_evaluation(settings: CommandSettings) -> list[Report]:
    """Evaluates all systems on every dataset, and writes, prints and returns the reports.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
        RerankError: a service refused a query; a further call resumes the run.
    """
    models = parse_systems(settings.model)
    datasets = open_datasets(settings)
    folders = _folders([dataset.name for dataset in datasets], settings.out)
    reports = [_evaluate(dataset, models, settings, out) for dataset, out in zip(datasets, folders, strict=True)]
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


def _evaluate(dataset: Dataset, models: Mapping[str, str], settings: CommandSettings, out: Path) -> Report:
    with open_systems(models, settings, dataset.index) as systems:
        hint = _FASTER if settings.precision == "float32" else ""
        asked = [*systems, *_second_searches(systems, settings)]
        responses = run_systems(asked, dataset, out, settings.concurrency, console, hint)
    first_stage = dataset.first_stage(responses[systems[0].name])
    notes = (
        *dataset.notes,
        *_notes_on_feedback(settings),
        *_notes_on_search(dataset, systems[0], first_stage, settings.target),
        *notes_on_missing_candidates(first_stage, dataset.judged, dataset.rel),
    )
    written = {**asdict(settings), "qrels_sha256": dataset.qrels_sha256, **dataset.fingerprint}
    results = [
        measure_system(system, responses[system.name], dataset, system_folder(system, asked, out), written, notes)
        for system in asked
    ]
    report = Report(
        dataset=dataset.name,
        title=dataset.title,
        results=(SystemResult(FIRST_STAGE, dataset.measure(first_stage)), *results),
        upper_bound=SystemResult(ORACLE, dataset.measure(best_order(dataset.judged, first_stage))),
        rel=dataset.rel,
        judged_queries=len({qrel.query_id for qrel in dataset.qrels}),
        notes=notes,
    )
    write_result(out / "first-stage.trec", trec_run(dataset.counted(first_stage), tag="first-stage"))
    write_report(report, out, console)
    if isinstance(settings, BeirSettings) and settings.feedback and dataset.index:
        from rerank_eval.feedback import evaluate_feedback  # imports torch

        by_system = {system.name: responses[system.name] for system in systems}
        evaluate_feedback(dataset.index, dataset, by_system, settings, out, console)
    return report


def _second_searches(systems: Sequence[System], settings: CommandSettings) -> Iterator[System]:
    """The systems with relevance feedback. Each ranks a second search with the vectors that its ranking has changed."""
    feedback = settings.second_search if isinstance(settings, BeirSettings) else None
    for system in systems if feedback else ():
        if system.fingerprint["ranker"] != "identity":  # it would only append the passages of the second search
            yield replace(
                system,
                name=f"{system.name}.feedback",
                options={**system.options, "feedback": feedback},
                fingerprint={**system.fingerprint, "feedback": feedback},
            )


def measure_system(
    system: System,
    responses: Sequence[Response],
    dataset: Dataset,
    folder: Path,
    settings: Mapping[str, object],
    notes: Sequence[str] = (),
) -> SystemResult:
    """Measures a system, and writes its run.trec and measures.json.

    Args:
        responses: the system's responses to the queries of the dataset.
        folder: folder of the two files.
        settings: settings of the evaluation, which are written into measures.json.
        notes: notes on the dataset, which are written into measures.json.

    Raises:
        ConfigError: the files cannot be written.
    """
    run = dataset.counted({response.query_id: response.docs for response in responses})
    metrics = dataset.measure(run)
    write_run(folder, run, metrics, {**settings, **system.fingerprint}, notes)
    return SystemResult(system.name, metrics, efficiency(responses), list(warnings(responses)), system.fingerprint)


def _notes_on_feedback(settings: CommandSettings) -> tuple[str, ...]:
    if not isinstance(settings, BeirSettings) or not (settings.feedback and settings.feedback_ranking):
        return ()
    if settings.second_search:
        return ()
    return (f"{settings.first_stage.value} has no query vector to update, so there is no second search.",)


def _notes_on_search(dataset: Dataset, system: System, first_stage: Run, target: str) -> tuple[str, ...]:
    """Notes on the index that a service searched. Raises: CollectionError if the index has another collection."""
    if dataset.lists is not None:
        return ()
    if dataset.index is None:
        found = {doc.doc_id for docs in first_stage.values() for doc in docs}
        check_doc_ids(found, dataset.qrels, f"passages found by the service at {target}")
    return notes_on_index_name(system.fingerprint.get("searched"), dataset.name)


def best_order(qrels: Iterable[Qrel], first_stage: Run) -> Run:
    """The run with the candidates of each query sorted by grade; candidates of equal grades keep their order."""
    grades = grades_by_query(qrels)
    run = {}
    for query_id, docs in first_stage.items():
        judged = grades.get(query_id, {})
        run[query_id] = by_rank(sorted((doc.doc_id for doc in docs), key=lambda doc_id: -judged.get(doc_id, 0)))
    return run
