"""The study of `eval-relevance`: ranks judged lists, gathers the signals of their passages, fits and measures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rerank.checkpoints.manifest import read_manifest, write_manifest
from rerank.checkpoints.relevance import RelevanceCurves, Signal
from rerank.commands.progress import show_progress
from rerank.commands.run import console
from rerank.config import ModelConfig, ServiceConfig, load_config
from rerank.config.named import config_of_model
from rerank.engine.relevance import signals_by_text
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.readers.requests import Request, read_requests
from rerank.reranking.registry import ModelRegistry, load_models, signal_encoders, with_path
from rerank.reranking.reranker import AsyncReranker
from rerank.retrieval.index import Index
from rerank.types import CandidateSource, Query, Ranking, RankOptions
from rerank_eval.datasets import open_dataset
from rerank_eval.overlap import candidate_ids, check_requests, judgements_of
from rerank_eval.relevance_fit import JudgedList, JudgedPassage, fit_curve, measure
from rerank_eval.report import markdown_table
from rerank_eval.settings import RelevanceSettings

#: Vectors of the texts are kept, as each list is read a second time with another query.
_CACHE_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class JudgedLists:
    """The judged queries of one source.

    Attributes:
        relevant: query_id → doc_ids of the relevant passages.
        requests: the lists of the queries; without candidates if `index` is searched for them.
    """

    name: str
    relevant: dict[str, set[str]]
    requests: Sequence[Request]
    index: Path | None = None


@dataclass(frozen=True, slots=True)
class RankedLists:
    """The lists of a source with their signals, and as many lists of another source with nothing relevant."""

    name: str
    own: Sequence[JudgedList]
    foreign: Sequence[JudgedList]

    def half(self, first: int) -> RankedLists:
        """Every second list, from the first (0) or the second (1) on."""
        return replace(self, own=self.own[first::2], foreign=self.foreign[first::2])


def run_study(settings: RelevanceSettings) -> None:
    """Prints the measures of each source. With `fit`, curves of one half are measured on the other, and printed.

    Raises:
        ConfigError: settings do not fit each other, or the model has no curve.
        CollectionError: a file cannot be read, or does not fit the others.
        CheckpointError, IndexMismatch: see `load_reranker`.
    """
    if settings.store and not settings.fit:
        raise ConfigError("--store is given without --fit; give both")
    sources = list(_sources(settings))
    config, name = _config(settings)
    encoder = Encoder(config.encoder, config.device, config.encoder_name or "", _CACHE_BYTES)
    models = load_models(config.models, encoder, config.device)
    info = models.rankers[name].info
    if not info.relevance and not settings.fit:
        raise ConfigError(f"model {name} gives no relevance; fit it with --fit")
    ranked = asyncio.run(_rank_all(settings, sources, config, encoder, models, name))
    if not settings.fit:
        _print_measures(ranked, info.relevance)
        return
    curves = _fit([each.half(0) for each in ranked], signal_encoders(models.rankers))
    _print_measures([each.half(1) for each in ranked], curves)
    given = [curve.model_dump(exclude_defaults=True) for curve in curves]
    block = yaml.safe_dump({"relevance": given}, sort_keys=False)
    console.print(f"for model {name} in service.yaml:\n{block}", soft_wrap=True)
    if settings.store:
        _store(curves, next(model for model in config.models if model.name == name), encoder)


def _config(settings: RelevanceSettings) -> tuple[ServiceConfig, str]:
    """The settings of the service, and the name of the model in them."""
    if settings.config is None:
        config = config_of_model(settings.model)
        return config, config.models[0].name
    config = load_config(settings.config)
    if settings.model not in (names := [model.name for model in config.models]):
        raise ConfigError(f"model {settings.model!r} is none of {', '.join(names)} in {settings.config}")
    return config, settings.model


def _sources(settings: RelevanceSettings) -> Iterator[JudgedLists]:
    pairs = (settings.requests, settings.qrels, "--qrels"), (settings.index, settings.collection, "--collection")
    for given, judged, flag in pairs:
        if len(given) != len(judged):
            raise ConfigError(f"{len(given)} sources and {len(judged)} {flag}; give one for each")
    count = len(settings.requests) + len(settings.index)
    grades = settings.relevant_from or [1] * count
    if not count or len(grades) != count:
        raise ConfigError(
            f"{count} sources of lists and {len(grades)} --relevant-from; give at least one --requests or --index, and "
            "a grade for each or for none"
        )
    for path, qrels_path, grade in zip(settings.requests, settings.qrels, grades, strict=False):
        requests = read_requests(path)
        qrels = read_qrels(qrels_path, candidate_ids(requests))
        check_requests(requests, qrels, str(path))
        judgements_of((request.query.query_id for request in requests), qrels, str(path))
        cut = [replace(request, candidates=request.candidates[: settings.depth]) for request in requests]
        yield _judged(f"{path.parent.name}/{path.name}", cut, grades_by_query(qrels), grade)
    for index, name, grade in zip(settings.index, settings.collection, grades[len(settings.requests) :], strict=True):
        dataset = open_dataset(name)
        requests = [Request(query, ()) for query in dataset.queries.values()]
        yield replace(_judged(dataset.name, requests, grades_by_query(dataset.qrels), grade), index=index)


def _judged(name: str, requests: Sequence[Request], grades: dict[str, dict[str, int]], least: int) -> JudgedLists:
    relevant = {query_id: {doc_id for doc_id, g in of.items() if g >= least} for query_id, of in grades.items()}
    return JudgedLists(name, relevant, [request for request in requests if request.query.query_id in relevant])


async def _rank_all(
    settings: RelevanceSettings,
    sources: Sequence[JudgedLists],
    config: ServiceConfig,
    encoder: Encoder,
    models: ModelRegistry,
    name: str,
) -> list[RankedLists]:
    """The lists of all sources, ranked."""
    options = RankOptions(model=name)
    found: list[list[tuple[Query, Ranking]]] = []
    for source in sources:
        index = Index(source.index, encoder) if source.index else None
        async with AsyncReranker(config, encoder, index, models) as reranker:
            found.append([each async for each in _rank_source(reranker, source, settings, options)])
    result = []
    async with AsyncReranker(config, encoder, None, models) as reranker:
        for number, (source, own) in enumerate(zip(sources, found, strict=True)):
            others = [ranking for _, ranking in found[(number + 1) % len(found)]]
            foreign = [each async for each in _rank_foreign(reranker, source, own, others, options)]
            rankings = (own, foreign)
            result.append(RankedLists(source.name, *(_judged_lists(each, source) for each in rankings)))
    return result


async def _rank_source(
    reranker: AsyncReranker, source: JudgedLists, settings: RelevanceSettings, options: RankOptions
) -> AsyncIterator[tuple[Query, Ranking]]:
    with show_progress(console) as progress:
        for done, (query, candidates) in enumerate(((r.query, r.candidates) for r in source.requests), start=1):
            if source.index is None:
                yield query, await reranker.rerank(query, candidates, options)
            else:
                yield query, (await reranker.search(query, settings.first_stage, settings.depth, options)).ranking
            progress.report(source.name, done, len(source.requests))


async def _rank_foreign(
    reranker: AsyncReranker,
    source: JudgedLists,
    own: Sequence[tuple[Query, Ranking]],
    others: Sequence[Ranking],
    options: RankOptions,
) -> AsyncIterator[tuple[Query, Ranking]]:
    """Each query with the candidates of a query of another source, half the way through; without relevant ones."""
    with show_progress(console) as progress:
        for number, (query, _) in enumerate(own):
            items = sorted(others[(number + len(others) // 2) % len(others)].ranked, key=lambda item: item.position)
            for passage in (item.candidate.passage for item in items):
                if passage.vector is not None:  # of an index
                    reranker.vector_cache.put(passage.text, passage.vector, passage.vector_truncated)
            candidates = [
                CandidateSource(item.candidate.passage.doc_id, item.candidate.passage.text, score=item.candidate.score)
                for item in items
                if item.candidate.passage.doc_id not in source.relevant[query.query_id]
            ]
            yield query, await reranker.rerank(query, candidates, options)
            progress.report(f"{source.name}, lists of others", number + 1, len(own))


def _judged_lists(rankings: Sequence[tuple[Query, Ranking]], source: JudgedLists) -> list[JudgedList]:
    lists = list[JudgedList]()
    for query, ranking in rankings:
        items = sorted(ranking.ranked, key=lambda item: item.position)
        passages, relevant = [item.candidate.passage for item in items], source.relevant[query.query_id]
        signals = signals_by_text(ranking.trace.windows, ranking.trace.model, passages)
        if items and not signals:
            raise ConfigError(f"{ranking.trace.strategy} gives no signal; fit a model with a preranker that does")
        lists.append([JudgedPassage(signals.get(each.text, {}), each.doc_id in relevant) for each in passages])
    return lists


def _fit(ranked: Sequence[RankedLists], encoders: Mapping[str, str]) -> RelevanceCurves:
    """The curves of the signals that the lists have."""
    lists = [each for of_source in ranked for each in (*of_source.own, *of_source.foreign)]
    given = {signal for each in lists for passage in each for signal in passage.signals}
    signals: Sequence[Signal] = ["score"] if "score" in given else ["cosine", "sparse"]
    return tuple(fit_curve(lists, signal, encoders.get(signal, "")) for signal in signals if signal in given)


def _print_measures(ranked: Sequence[RankedLists], curves: RelevanceCurves) -> None:
    rows = [
        (each.name, str(len(each.own)), *(f"{value:.3f}" for value in measure(curves, each.own, each.foreign)))
        for each in ranked
    ]
    head = ("lists", "queries", "ECE", "AUC", "dropped at 95 %", "silent", "answered")
    console.print(markdown_table(head, rows), soft_wrap=True)
    console.print(
        "dropped at 95 %: share of irrelevant results below the threshold that keeps 95 % of the relevant ones. "
        "silent: share of lists with nothing relevant that have no result above 0.5. answered: share of lists with a "
        "relevant passage that have one.",
        soft_wrap=True,
    )


def _store(curves: RelevanceCurves, model: ModelConfig, encoder: Encoder) -> None:
    """Stores the curves in the manifest of the model's checkpoint. Raises: ConfigError if there is none."""
    path = getattr(with_path(model, encoder), "path", None)
    manifest = read_manifest(path) if path else None
    if not path or not manifest:
        raise ConfigError(f"model {model.name} has no checkpoint with a manifest; put the curves into service.yaml")
    write_manifest(path, manifest.model_copy(update={"relevance": curves}))
    console.print(f"{path}: stored")
