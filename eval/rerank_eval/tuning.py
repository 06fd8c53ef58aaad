"""`rerank tune`: chooses model, depth and interpolation by cross-validation on a user's queries and judgements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rerank.blocking_reranker import Reranker
from rerank.commands.run import console
from rerank.commands.tune import TuneSettings
from rerank.config import BUNDLED_MODELS, IdentityModel, ModelConfig, QueryLikelihoodModel, ServiceConfig, load_config
from rerank.errors import ConfigError
from rerank.manifest import served_model
from rerank.rankers.base import RankerInfo
from rerank.readers.requests import Request
from rerank.types import CandidateSource, ScoredDoc, ScoreKind, StrategyKind
from rerank_eval.cross_validation import choose, cross_validate, p_of_gain
from rerank_eval.evaluation import versions
from rerank_eval.measures import MAIN_MEASURE, TREC_DL, Evaluator, without_query_documents
from rerank_eval.recorded_scores import ModelScores, OrderedList, Recorder, ReorderedLists
from rerank_eval.statistics import compare
from rerank_eval.tuning_data import read_data
from rerank_eval.tuning_report import Choice, Tuning, write_tuning

#: Weights of the order before the model; with larger ones, the model hardly changes it.
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: nDCG@10 reads no more, also where a passage that is the query itself is left out.
_READ = 11
#: Models that are tried beside those of the user, by the kind of their ranker.
_BUNDLED = {model.ranker: model.model_copy(update={"name": model.ranker}) for model in BUNDLED_MODELS}
_BUNDLED.setdefault("query-likelihood", QueryLikelihoodModel(name="query-likelihood", ranker="query-likelihood"))


def run_tuning(settings: TuneSettings) -> None:
    """Records the scores of all models, chooses, and writes service.yaml, the report and the plot.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file cannot be read, or too few queries have a relevant passage in their list.
        CheckpointError: a model cannot be loaded.
    """
    _ = settings.reranked  # refused before anything is loaded
    data = read_data(settings)
    own = [served_model(model) for model in settings.model]
    config = load_config(settings.config, own, index=settings.index)
    models = _models(config, settings.only)
    console.print(f"{len(data.queries)} judged queries; loading {', '.join(models)} …")
    with Reranker(_measured_service(config, models)) as reranker:
        fingerprint = {**data.fingerprint, "versions": versions()}
        recorder = Recorder(reranker, data.queries, settings.out / "scores", fingerprint)
        search = partial(recorder.first_stage, settings.first_stage)
        candidates = data.candidates(settings.depth) if data.requests else search(settings.depth)
        data.check_relevant(candidates)
        infos = {model.name: model.info for model in reranker.models() if model.name in models and not model.problem}
        for name in sorted(models.keys() - infos.keys()):
            console.print(f"{name} is not tried: it failed its self-test")
        first = ReorderedLists({query_id: OrderedList.of(rows) for query_id, rows in candidates.items()})
        ask = partial(_ask, recorder, models, infos, data.requests)
        tried = [(Choice(), first), *_tried(ask, settings, models, infos, first)]
    choices, stages = zip(*tried, strict=True)
    evaluator = Evaluator(TREC_DL[:1], data.qrels, partial(without_query_documents, data.qrels))
    values = np.array([_values(evaluator, stage) for stage in stages])
    costs_ms = [stage.processor_ms for stage in stages]
    held_out, chosen = cross_validate(values, costs_ms, settings.folds, settings.seed)
    comparison = compare(held_out.tolist(), values[0].tolist(), settings.seed)
    p = p_of_gain(values, costs_ms, settings.folds, settings.seed)
    tuning = Tuning(choices, values, costs_ms, choose(values, costs_ms), held_out, chosen, comparison, p, data.notes)
    write_tuning(tuning, config, models, settings, console)


def _models(config: ServiceConfig, only: Sequence[str]) -> dict[str, ModelConfig]:
    """The models to try by name, each as one step that reads one window.

    Raises:
        ConfigError: `only` names another one.
    """
    own = [model for model in config.models if model not in BUNDLED_MODELS]
    models = {model.name: model for model in (*_BUNDLED.values(), *own) if model.ranker != "identity"}
    if unknown := [name for name in only if name not in models]:
        raise ConfigError(f"--only {', '.join(unknown)}: there is no such model to try; use {', '.join(models)}")
    alone = {"strategy": StrategyKind.SINGLE, "preranker": ""}
    return {name: model.model_copy(update=alone) for name, model in models.items() if not only or name in only}


def _measured_service(config: ServiceConfig, models: Mapping[str, ModelConfig]) -> ServiceConfig:
    """The service with these models; without the caches by which a model that reads a text again would cost less."""
    engine = config.engine.model_copy(update={"text_vector_cache_bytes": 0, "passage_state_bytes": 0})
    identity = IdentityModel(name="identity", ranker="identity")  # searches for the lists
    return config.model_copy(update={"models": (*models.values(), identity), "engine": engine})


def _tried(
    ask: Callable[[str, str, ReorderedLists, int], ModelScores],
    settings: TuneSettings,
    models: Mapping[str, ModelConfig],
    infos: Mapping[str, RankerInfo],
    first: ReorderedLists,
) -> Iterator[tuple[Choice, ReorderedLists]]:
    """All configurations but the first stage.

    A model that reads vectors orders the whole list, and may be the preranker of others by its own weight. Any other
    one reads the first passages of the first stage or of a preranker.

    Args:
        ask: function from a model, the name of its preranker, the lists after that and a depth to the scores.
    """
    before = {"": first}
    for name in sorted(infos, key=lambda name: not infos[name].reads_vectors):
        info = infos[name]
        if info.reads_vectors:
            scores = ask(name, "", first, settings.depth)
            yield from _weighted(Choice(name), first, scores, settings.depth, info)
            before[name] = first.then(scores, settings.depth, models[name].first_stage_weight)
            continue
        depths = [depth for depth in settings.reranked if depth <= info.max_window_size]
        is_pointwise = info.score_kind.is_pointwise  # what else is in the window has no effect
        for preranker, stage in before.items():
            for asked in depths[-1:] if is_pointwise else depths:
                scores = ask(name, preranker, stage, asked)
                for depth in depths if is_pointwise else [asked]:
                    share = replace(scores, processor_ms=scores.processor_ms * depth / asked)
                    yield from _weighted(Choice(name, preranker, depth), stage, share, depth, info)


def _ask(
    recorder: Recorder,
    models: Mapping[str, ModelConfig],
    infos: Mapping[str, RankerInfo],
    requests: Mapping[str, Request],
    name: str,
    preranker: str,
    stage: ReorderedLists,
    depth: int,
) -> ModelScores:
    """The scores of a model for the first passages of each list after a stage.

    Args:
        requests: lists with the texts, by query_id; empty: the index has them.
        preranker: name of the stage before; empty: the first stage.
    """
    model, info = models[name], infos[name]
    fingerprint = {
        "model": model.model_dump(mode="json", exclude={"interpolation", "window_size", "stride"}),
        "model_revision": info.model_revision,
        "template_sha256": info.template_sha256,
    }
    windows = {}
    for query_id, each in stage.lists.items():
        given = {row.doc_id: row for row in requests[query_id].candidates} if requests else {}
        windows[query_id] = [given.get(each, CandidateSource(each, in_index=True)) for each in each.order[:depth]]
    # If inference servers run the model, this process only waits.
    clock = time.perf_counter if getattr(model, "served_by", None) else time.process_time
    return recorder.scores(f"{name}-{depth}-{preranker or 'first-stage'}", name, fingerprint, windows, clock)


def _weighted(
    choice: Choice, stage: ReorderedLists, scores: ModelScores, depth: int, info: RankerInfo
) -> Iterator[tuple[Choice, ReorderedLists]]:
    """The choice with each weight; an order without scores has none."""
    for weight in _WEIGHTS if info.score_kind is not ScoreKind.RANK else (0.0,):
        yield choice._replace(weight=weight), stage.then(scores, depth, weight)


def _values(evaluator: Evaluator, stage: ReorderedLists) -> list[float]:
    """nDCG@10 of each query."""
    run = {
        query_id: [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(each.order[:_READ])]
        for query_id, each in stage.lists.items()
    }
    return evaluator.evaluate(run).values(MAIN_MEASURE)
