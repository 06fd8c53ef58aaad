"""Tasks of an evaluation, one for each dataset, as the settings of a command name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.requests import Request, read_requests
from rerank.util.files import sha256_of_files
from rerank_eval.candidates import (
    candidates_of_run,
    first_candidates,
    in_index,
    without_scores,
)
from rerank_eval.datasets import Dataset, open_dataset
from rerank_eval.measures import BEIR, Evaluator, least_relevant_grade, trec_dl, without_query_documents
from rerank_eval.orders import parse_orders
from rerank_eval.overlap import candidate_ids, check_index, check_requests, judgements_of
from rerank_eval.settings import BeirSettings, EvaluationSettings, TrecDLSettings
from rerank_eval.sources import GivenLists, Search, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One dataset to evaluate on: its queries with a source of candidates, and its judgements.

    Attributes:
        name: of the dataset.
        title: heading of the report.
        evaluator: measures by the judgements of the queries that count.
        qrels: all judgements, also of queries that are not asked; `qrels_sha256` is their hash.
        notes: sentences for the reader where judgements and data cover each other only in part.
        index: folder of the index with which a service is started.
    """

    name: str
    title: str
    source: Source
    evaluator: Evaluator
    qrels: Sequence[Qrel]
    qrels_sha256: str
    notes: tuple[str, ...] = ()
    index: Path | None = None


def open_tasks(settings: EvaluationSettings) -> list[Task]:
    """Reads all datasets, before the first query runs.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a dataset cannot be read, or its queries, candidates and judgements share no ids.
    """
    if isinstance(settings, BeirSettings):
        return _beir_tasks(settings)
    if isinstance(settings, TrecDLSettings):
        return _trec_dl_tasks(settings)
    raise AssertionError(f"{type(settings).__name__} are the settings of no command; this is a bug")


def _beir_tasks(settings: BeirSettings) -> list[Task]:
    by_flag: dict[str, Sequence[Path]] = {
        "--index": settings.index,
        "--run": settings.run_file,
    }
    used = [flag for flag, given in by_flag.items() if given]
    collections = len(settings.collection)
    if not used and not (settings.target and collections == 1):
        raise ConfigError(
            "no source of candidates: give --index DIR or --run FILE for each collection, or --target HOST:PORT of a "
            "service with an index of the only collection"
        )
    if len(used) > 1 or (used and len(by_flag[used[0]]) != collections):
        counts = ", ".join(f"{len(given)} {flag}" for flag, given in by_flag.items())
        raise ConfigError(
            f"{collections} --collection, {counts}; give one of the last two for each collection, in the same order"
        )
    if settings.feedback and settings.run_file:
        raise ConfigError("--feedback searches a second time, which a run cannot; give --index DIR instead of --run")
    if not used:
        return [_search_task(settings.collection[0], None, settings)]
    task = _search_task if settings.index else _run_task
    return [task(*pair, settings) for pair in zip(settings.collection, by_flag[used[0]], strict=True)]


def _search_task(collection: str, index: Path | None, settings: BeirSettings) -> Task:
    """A service searches the index; None: that which a running service has."""
    dataset = open_dataset(collection, settings.split)
    fingerprint = {"first_stage": settings.first_stage.value} | _fingerprint(dataset, settings)
    source = Search(dataset.queries, fingerprint, settings.first_stage, settings.depth, settings.feedback)
    notes = check_index(index, dataset.qrels, collection) if index else ()
    task = _beir_task(collection, dataset, source, settings.first_stage.value, settings)
    return replace(task, notes=task.notes + notes, index=index)


def _run_task(collection: str, path: Path, settings: BeirSettings) -> Task:
    dataset = open_dataset(collection, settings.split)
    requests, unjudged = candidates_of_run(path, dataset, settings.depth)
    source = _given_lists(requests, {"run_sha256": sha256_of_files([path])} | _fingerprint(dataset, settings))
    task = _beir_task(collection, dataset, source, f"run {path.name}", settings, unjudged)
    return replace(task, notes=task.notes + check_requests(requests, dataset.qrels, str(path)))


def _beir_task(
    collection: str,
    dataset: Dataset,
    source: Source,
    in_words: str,
    settings: BeirSettings,
    unjudged: Iterable[str] = (),
) -> Task:
    """The task with its measures. `unjudged`: queries of the source that have no judgements."""
    qrels, notes = judgements_of([*source.queries, *unjudged], dataset.qrels, collection, settings.only_asked)
    return Task(
        name=dataset.name,
        title=f"{len(source.queries)} queries of {dataset.name}, {in_words}, depth {settings.depth}",
        source=source,
        evaluator=Evaluator(BEIR, qrels, partial(without_query_documents, dataset.qrels)),
        qrels=dataset.qrels,
        qrels_sha256=dataset.qrels_sha256,
        notes=notes,
    )


def _fingerprint(dataset: Dataset, settings: BeirSettings) -> dict[str, object]:
    return {"depth": settings.depth, "queries_sha256": dataset.queries_sha256}


def _given_lists(requests: Iterable[Request], fingerprint: Mapping[str, object]) -> GivenLists:
    return GivenLists({request.query.query_id: request for request in requests}, fingerprint)


def _trec_dl_tasks(settings: TrecDLSettings) -> list[Task]:
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
    given = zip_longest(_names(requests), requests, qrels, collections)
    return [_trec_dl_task(name, path, qrels_file, collection, settings) for name, path, qrels_file, collection in given]


def _trec_dl_task(
    name: str, path: Path, qrels_file: Path | None, collection: str | None, settings: TrecDLSettings
) -> Task:
    orders = parse_orders(settings.orders)
    dataset = open_dataset(collection, settings.split) if collection else None
    requests, unjudged = candidates_of_run(path, dataset, settings.depth) if dataset else (read_requests(path), [])
    fingerprint: dict[str, object] = {
        "depth": settings.depth,
        "seed": settings.seed,
        "requests_sha256": sha256_of_files([path]),
    }
    requests, changes = _prepared(requests, settings)
    fingerprint |= changes
    all_qrels: Sequence[Qrel] = ()
    qrels_sha256 = ""
    if dataset:
        fingerprint["queries_sha256"] = dataset.queries_sha256
        all_qrels, qrels_sha256 = dataset.qrels, dataset.qrels_sha256
    if qrels_file:
        all_qrels = read_qrels(qrels_file, candidate_ids(requests))
        qrels_sha256 = sha256_of_files([qrels_file])
    source = replace(_given_lists(requests, fingerprint), orders=orders, seed=settings.seed)
    qrels, notes = judgements_of([*source.queries, *unjudged], all_qrels, str(path), settings.only_asked)
    notes += check_requests(requests, all_qrels, str(path))
    return Task(
        name=name,
        title=f"{len(requests)} queries of {name}/{path.name}, depth {settings.depth or 'all'}",
        source=source,
        evaluator=Evaluator(trec_dl(least_relevant_grade(all_qrels, settings.rel)), qrels),
        qrels=all_qrels,
        qrels_sha256=qrels_sha256,
        notes=notes,
        index=settings.index,
    )


def _prepared(requests: Iterable[Request], settings: TrecDLSettings) -> tuple[list[Request], dict[str, object]]:
    """The requests after the settings have changed them, and the settings that did."""
    requests, changes = [first_candidates(request, settings.depth) for request in requests], dict[str, object]()
    for setting, is_on, changed in (
        ("in_index", settings.index is not None, in_index),
        ("without_scores", settings.without_scores, without_scores),
    ):
        if is_on:
            requests, changes[setting] = [changed(request) for request in requests], True
    return requests, changes


def _names(requests: Sequence[Path]) -> list[str]:
    """The name of each file's folder; with the file's own name where two folders have the same."""
    folders = [path.absolute().parent.name for path in requests]
    if len(set(folders)) == len(folders):
        return folders
    return [f"{folder}-{path.stem}" for folder, path in zip(folders, requests, strict=True)]
