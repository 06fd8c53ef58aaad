"""Evaluation of search: retrieval and reranking for the queries of a collection, or reranking of given candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rerank.commands.run import console
from rerank.errors import ConfigError
from rerank.files import sha256_of_files
from rerank.readers.qrels import Qrel
from rerank.readers.requests import Request
from rerank.retrieval.store import PassageStore
from rerank.types import CandidateSource, FeedbackMethod, FirstStage, Query, ScoredDoc
from rerank_eval.baselines import Oracle
from rerank_eval.beir import BeirSettings
from rerank_eval.candidate_lists import CandidateLists
from rerank_eval.candidates import candidates_of_prebuilt, candidates_of_run
from rerank_eval.cases import CaseFinder, FindTexts
from rerank_eval.datasets import Dataset, open_dataset
from rerank_eval.experiment import Experiment
from rerank_eval.measures import BEIR, Evaluator, Run, without_query_documents
from rerank_eval.orders import ORIGINAL
from rerank_eval.overlap import Judgements, check_index, check_names, check_requests, check_responses, judgements_of
from rerank_eval.report import FIRST_STAGE, ORACLE, Evaluation
from rerank_eval.report_writer import dataset_folder, write_overview
from rerank_eval.results import Result
from rerank_eval.runner import Responses, Variant
from rerank_eval.systems import Baseline, System
from rerank_eval.table import Summary
from rerank_eval.trace import Ranking, Response

#: Suffix of the name of a system that searches with relevance feedback.
_FEEDBACK_SUFFIX = ".feedback"


@dataclass(frozen=True, slots=True)
class _RunFile:
    path: Path


@dataclass(frozen=True, slots=True)
class _PrebuiltIndex:
    name: str


#: Source of a collection's candidates: an index folder, the index of the --target (None), or a given list.
_Source: TypeAlias = Path | _RunFile | _PrebuiltIndex | None


@dataclass(frozen=True, slots=True)
class _Input:
    """A collection with the source of its candidates; checked to belong together.

    Attributes:
        requests: the candidates if they are given; empty if a service retrieves them.
    """

    dataset: Dataset
    source: _Source
    requests: Sequence[Request]
    judgements: Judgements


@dataclass(frozen=True, slots=True)
class _Plan:
    """Variants to run, the ids of their queries, and the source of the candidates in words."""

    variants: list[Variant]
    query_ids: list[str]
    source: str


def evaluate_search(settings: BeirSettings) -> None:
    """Evaluates all systems on every collection, and writes and prints the reports.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file of a collection cannot be read, or its queries, candidates and judgements share no ids.
        RerankError: a service refused a query; a further call resumes the run.
    """
    experiment = Experiment.from_settings(settings)
    sources = _sources(settings)
    if settings.feedback and not all(isinstance(source, Path) for source in sources):
        raise ConfigError("--feedback updates query vectors in this process and needs the index; give --index DIR")
    inputs = [_open(name, source, settings) for name, source in zip(settings.collection, sources, strict=True)]
    names = [opened.dataset.name for opened in inputs]
    summaries = [
        _evaluate(opened, settings, experiment, dataset_folder(opened.dataset.name, names, settings.out))
        for opened in inputs
    ]
    write_overview(summaries, settings.out, console)


def _sources(settings: BeirSettings) -> Sequence[_Source]:
    """The source of candidates of each collection."""
    by_flag: dict[str, Sequence[_Source]] = {
        "--index": settings.index,
        "--run": [_RunFile(path) for path in settings.run_file],
        "--prebuilt": [_PrebuiltIndex(name) for name in settings.prebuilt],
    }
    used = [sources for sources in by_flag.values() if sources]
    collections = len(settings.collection)
    if not used and settings.targets and collections == 1:
        return [None]
    if not used:
        raise ConfigError(
            "no source of candidates: give --index DIR, --run FILE or --prebuilt NAME for each collection, or --target "
            "HOST:PORT of a service with an index of the only collection"
        )
    if len(used) > 1 or len(used[0]) != collections:
        counts = ", ".join(f"{len(sources)} {flag}" for flag, sources in by_flag.items())
        raise ConfigError(
            f"{collections} --collection, {counts}; give one of the last three for each collection, in the same order"
        )
    return used[0]


def _open(collection: str, source: _Source, settings: BeirSettings) -> _Input:
    """Reads the collection and its given candidates, before the first query of any collection runs."""
    dataset = open_dataset(collection, settings.split)
    requests: Sequence[Request] = ()
    unjudged: Sequence[str] = ()
    notes: tuple[str, ...] = ()
    if isinstance(source, _RunFile):
        requests, unjudged = candidates_of_run(source.path, dataset, settings.depth)
        check_requests(requests, dataset.qrels, str(source.path))
    elif isinstance(source, _PrebuiltIndex):
        requests = candidates_of_prebuilt(source.name, dataset, settings.depth)
        check_requests(requests, dataset.qrels, source.name)
    elif source is not None:
        notes = check_index(source, dataset.qrels, collection)
    asked = [request.query.query_id for request in requests] or list(dataset.queries)
    judgements = judgements_of([*asked, *unjudged], dataset.qrels, collection, settings.only_asked)
    return _Input(dataset, source, requests, replace(judgements, notes=judgements.notes + notes))


def _evaluate(opened: _Input, settings: BeirSettings, experiment: Experiment, out: Path) -> Summary:
    dataset, source, notes = opened.dataset, opened.source, opened.judgements.notes
    qrels = opened.judgements.qrels
    index = source if isinstance(source, Path) else None
    with experiment.open_systems(qrels, index) as systems:
        if source is None or isinstance(source, Path):
            plan = _search_plan(systems, dataset, settings, experiment)
            notes += check_names(next(iter(systems.values())).fingerprint.get("searched"), dataset.name)
        else:
            plan = _rerank_plan(systems, opened, source, settings, experiment)
        responses = experiment.run(plan.variants, plan.query_ids, out)
    measured = responses[experiment.loads[0]]
    if source is None:
        found = [response for rows in measured.values() for response in rows]
        check_responses(found, dataset.qrels, f"the service at {', '.join(settings.targets)}")
    evaluator = Evaluator(BEIR, qrels, partial(without_query_documents, dataset.qrels))
    results = experiment.measure(plan.variants, responses, evaluator, out, dataset.qrels_sha256, notes)
    first_stage = _first_stage_run(measured[plan.variants[0].name])
    finder = CaseFinder(evaluator, first_stage, _query_texts(dataset), _find_texts(opened))
    cases = finder.by_system(results, measured)
    if not experiment.has_identity:
        results.append(Result(FIRST_STAGE, finder.metrics))
    evaluation = Evaluation(
        dataset.name,
        f"{len(plan.query_ids)} queries of {dataset.name}, {plan.source}, depth {settings.depth}",
        results,
        Result(ORACLE, evaluator.evaluate(_oracle_run(qrels, first_stage))),
        {**settings.as_strings(), **experiment.fingerprint},
        margin=settings.margin,
        seed=settings.seed,
        notes=notes,
        cases=cases,
    )
    summary = experiment.report(evaluation, out)
    if index is not None and settings.feedback:
        _evaluate_feedback(dataset, index, _system_runs(measured), first_stage, evaluator, settings.seed, out, notes)
    return summary


def _search_plan(
    systems: Mapping[str, System], dataset: Dataset, settings: BeirSettings, experiment: Experiment
) -> _Plan:
    """A service retrieves; with --feedback and a dense query vector, every model searches a second time."""
    fingerprint = {
        **experiment.fingerprint,
        "first_stage": settings.first_stage.value,
        "depth": settings.depth,
        "queries_sha256": dataset.queries_sha256,
    }
    options: dict[str, Any] = {"first_stage": settings.first_stage, "depth": settings.depth}
    variants = [
        Variant(
            name,
            {**system.fingerprint, **fingerprint},
            _searcher(system, dataset.queries, options),
            experiment.is_served(name),
        )
        for name, system in systems.items()
    ]
    if settings.feedback and settings.first_stage is not FirstStage.BM25:
        options = options | {"feedback": FeedbackMethod.WEIGHTED_RANKNET}
        variants += [
            Variant(
                name + _FEEDBACK_SUFFIX,
                {**system.fingerprint, **fingerprint, "feedback": True},
                _searcher(system, dataset.queries, options),
            )
            for name, system in systems.items()
            # identity would only append the passages of the second search
            if experiment.is_served(name) and system.fingerprint["ranker"] != "identity"
        ]
    return _Plan(variants, list(dataset.queries), settings.first_stage.value)


def _rerank_plan(
    systems: Mapping[str, System],
    opened: _Input,
    source: _RunFile | _PrebuiltIndex,
    settings: BeirSettings,
    experiment: Experiment,
) -> _Plan:
    """Systems rerank given candidates."""
    if isinstance(source, _RunFile):
        in_words, identity = f"run {source.path.name}", {"run_sha256": sha256_of_files([source.path])}
    else:
        in_words, identity = f"BM25 on {source.name}", {"prebuilt": source.name}
    lists = CandidateLists.of_requests(opened.requests, settings.depth, settings.seed)
    fingerprint = {
        **experiment.fingerprint,
        **identity,
        "depth": settings.depth,
        "queries_sha256": opened.dataset.queries_sha256,
    }
    variants = [
        Variant(
            name, {**system.fingerprint, **fingerprint}, lists.reranker(system, ORIGINAL), experiment.is_served(name)
        )
        for name, system in systems.items()
    ]
    return _Plan(variants, list(lists.requests), in_words)


def _searcher(system: System, queries: Mapping[str, Query], options: Mapping[str, Any]) -> Callable[[str], Ranking]:
    return lambda query_id: system.search(queries[query_id], **options)


def _query_texts(dataset: Dataset) -> dict[str, str]:
    return {query_id: query.text for query_id, query in dataset.queries.items()}


def _find_texts(opened: _Input) -> FindTexts:
    """Texts of given candidates or of the index; none if only a service has them."""
    if isinstance(opened.source, Path):
        store = PassageStore(opened.source)
        return lambda _, doc_ids: store.texts(list(doc_ids))
    return CandidateLists.of_requests(opened.requests, depth=0, seed=0).texts if opened.requests else lambda *_: {}


def _first_stage_run(responses: Iterable[Response]) -> Run:
    """The candidates of each query in the first stage's order."""
    return {response.query_id: _in_first_stage_order(response.ranking) for response in responses}


def _in_first_stage_order(ranking: Ranking) -> list[ScoredDoc]:
    candidates = sorted(zip(ranking.positions, ranking.doc_ids, strict=True))
    return [ScoredDoc(doc_id, -float(position)) for position, doc_id in candidates]


def _oracle_run(qrels: Iterable[Qrel], first_stage: Run) -> Run:
    oracle = Baseline(Oracle(qrels))
    return {
        query_id: oracle.rerank(Query("", query_id), [CandidateSource(doc.doc_id, "") for doc in docs]).docs
        for query_id, docs in first_stage.items()
    }


def _system_runs(responses: Responses) -> dict[str, Run]:
    """The runs of all systems without feedback."""
    return {
        name: {row.query_id: row.ranking.docs for row in rows}
        for name, rows in responses.items()
        if not name.endswith(_FEEDBACK_SUFFIX)
    }


def _evaluate_feedback(
    dataset: Dataset,
    index: Path,
    runs: Mapping[str, Run],
    first_stage: Run,
    evaluator: Evaluator,
    seed: int,
    out: Path,
    notes: Sequence[str],
) -> None:
    """Evaluates dense retrieval after it follows every system, and after it follows the oracle."""
    from rerank_eval import feedback  # imports torch, which only feedback needs

    teachers = {**runs, ORACLE: feedback.teacher_of_grades(dataset.qrels, first_stage)}
    experiment = feedback.FeedbackExperiment(
        index, dataset.queries, replace(evaluator, measures=feedback.FEEDBACK_MEASURES)
    )
    feedback.write_feedback_report(experiment, teachers, out, seed, console, notes)
