"""Tries models, depths and weights on a user's queries and judgements, and chooses among them by cross-validation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from rerank.checkpoints.manifest import served_model
from rerank.commands.run import console
from rerank.config import BUNDLED_MODELS, FusionModel, IdentityModel, ModelConfig, ServiceConfig, load_config
from rerank.config.models import InterpolationConfig, reads_sparse
from rerank.errors import ConfigError
from rerank.rankers.base import RankerInfo
from rerank.rankers.fusion import FusionRanker
from rerank.readers.requests import Request
from rerank.reranking.blocking import Reranker
from rerank.types import CandidateSource, FirstStageKind, ScoredDoc, ScoreKind, StrategyKind
from rerank_eval.cross_validation import choose, cross_validate, p_of_gain
from rerank_eval.evaluation import versions
from rerank_eval.measures import MAIN_MEASURE, Evaluator, trec_dl, without_query_documents
from rerank_eval.recorded_scores import ModelScores, OrderedList, Recorder, ReorderedLists
from rerank_eval.statistics import compare
from rerank_eval.tune_settings import TuneSettings
from rerank_eval.tuning_data import read_data
from rerank_eval.tuning_report import Choice, Tuning, write_tuning

#: Weights of the order before the model; with larger ones, the model hardly changes it.
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: Weights of the sparse score and of the first stage in a fusion; the cosine keeps the weight of its settings.
_SPARSE_WEIGHTS, _FIRST_STAGE_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.15, 0.3, 0.6, 1.0, 1.5)
#: nDCG@10 reads no more, also where a passage that is the query itself is left out.
_READ = 11
#: Models that are tried beside those of the user, by the kind of their ranker.
_BUNDLED = {model.ranker: model.model_copy(update={"name": model.ranker}) for model in BUNDLED_MODELS}


class Tried(NamedTuple):
    """The first doc_ids of each list by a configuration, by query_id, and its cost per query."""

    choice: Choice
    orders: Mapping[str, Sequence[str]]
    processor_ms: float

    @classmethod
    def of(cls, choice: Choice, stage: ReorderedLists) -> Tried:
        return cls(choice, {query_id: each.order for query_id, each in stage.lists.items()}, stage.processor_ms)


def run_tuning(settings: TuneSettings) -> None:
    """Records the scores of all models, chooses, and writes service.yaml and the report.

    Raises:
        ConfigError: settings are not valid or do not fit each other.
        CollectionError: a file cannot be read, or too few queries have a relevant passage in their list.
        CheckpointError: a model cannot be loaded.
    """
    depths = settings.reranked  # refused before anything is loaded
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
        kind = config.first_stage_kind if data.requests else settings.first_stage.kind
        trials = Trials(recorder, models, infos, data.requests, first, kind, settings.depth, depths)
        choices, orders, costs_ms = zip(*trials.all(), strict=True)
    evaluator = Evaluator(trec_dl()[:1], data.qrels, partial(without_query_documents, data.qrels))
    values = np.array([_values(evaluator, each) for each in orders])
    defaults = [row for row, choice in enumerate(choices) if choice.is_default]
    held_out, chosen = cross_validate(values, costs_ms, settings.folds, settings.seed, defaults)
    comparison = compare(held_out.tolist(), values[0].tolist(), settings.seed)
    p = p_of_gain(values, costs_ms, settings.folds, settings.seed, defaults)
    best = choose(values, costs_ms, defaults)
    tuning = Tuning(choices, values, costs_ms, best, held_out, chosen, comparison, p, data.notes)
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
    """The service with these models; without the cache by which a model that reads a text again would cost less."""
    engine = config.engine.model_copy(update={"text_vector_cache_bytes": 0})
    identity = IdentityModel(name="identity", ranker="identity")  # searches for the lists
    return config.model_copy(update={"models": (*models.values(), identity), "engine": engine})


@dataclass(frozen=True, slots=True)
class Trials:
    """All configurations of some models, tried on the same lists.

    Attributes:
        models: by name; `infos` has those that can be tried.
        requests: lists with the texts, by query_id; empty: the index has them.
        first: the lists of the first stage, which is of the `kind`.
        depth: number of passages in a list.
        depths: numbers of first passages that models which read texts may rerank, ascending.
    """

    recorder: Recorder
    models: Mapping[str, ModelConfig]
    infos: Mapping[str, RankerInfo]
    requests: Mapping[str, Request]
    first: ReorderedLists
    kind: FirstStageKind
    depth: int
    depths: Sequence[int]

    def all(self) -> Iterator[Tried]:
        """The first stage, and then each model with each depth and weight.

        A model that reads vectors orders the whole list, and may be the preranker of others by its own weight. Any
        other one reads the first passages of the first stage or of a preranker.
        """
        yield Tried.of(Choice(), self.first)
        before = {"": self.first}
        for name in sorted(self.infos, key=lambda name: not self.infos[name].reads_vectors):
            model, info = self.models[name], self.infos[name]
            if isinstance(model, FusionModel):
                scores = self._scores(name, "", self.first, self.depth, model.first_stage_weight(self.kind))
                before[name] = self.first.then(scores, self.depth, 0.0)
                yield from self._fusions(model, before[name].processor_ms)
            elif info.reads_vectors:
                scores = self._scores(name, "", self.first, self.depth)
                yield from self._weighted(Choice(name), self.first, scores, self.depth)
                before[name] = self.first.then(scores, self.depth, model.first_stage_weight(self.kind))
            else:
                for preranker, stage in before.items():
                    yield from self._depths(name, preranker, stage)

    def _depths(self, name: str, preranker: str, stage: ReorderedLists) -> Iterator[Tried]:
        """A model over the first passages of each list after a stage, whose name is empty for the first stage."""
        info = self.infos[name]
        depths = [depth for depth in self.depths if depth <= info.max_window_size]
        is_pointwise = info.score_kind.is_pointwise  # what else is in the window has no effect
        for asked in depths[-1:] if is_pointwise else depths:
            scores = self._scores(name, preranker, stage, asked)
            for depth in depths if is_pointwise else [asked]:
                share = replace(scores, processor_ms=scores.processor_ms * depth / asked)
                yield from self._weighted(Choice(name, preranker, depth), stage, share, depth)

    def _scores(self, name: str, preranker: str, stage: ReorderedLists, depth: int, weight: float = 0.0) -> ModelScores:
        """The scores of a model for the first passages of each list after a stage.

        Args:
            preranker: name of the stage before; empty: the first stage.
            weight: of the scores before the model in its own.
        """
        model, info = self.models[name], self.infos[name]
        fingerprint = {
            "model": model.model_dump(mode="json", exclude={"interpolation", "window_size", "stride"}),
            "model_revision": info.model_revision,
            "template_sha256": info.template_sha256,
            **({"first_stage_weight": weight} if weight else {}),
        }
        # If inference servers run the model, this process only waits.
        clock = time.perf_counter if getattr(model, "served_by", None) else time.process_time
        folder = f"{name}-{depth}-{preranker or 'first-stage'}"
        return self.recorder.scores(folder, name, fingerprint, self._windows(stage, depth), clock, weight)

    def _windows(self, stage: ReorderedLists, depth: int) -> dict[str, list[CandidateSource]]:
        """The first passages of each list after a stage, with the scores of that stage."""
        windows = {}
        for query_id, each in stage.lists.items():
            given = {row.doc_id: row for row in self.requests[query_id].candidates} if self.requests else {}
            read = each.order[:depth]
            windows[query_id] = [
                replace(given.get(doc_id, CandidateSource(doc_id, in_index=True)), score=score)
                for doc_id, score in zip(read, each.scores(read), strict=True)
            ]
        return windows

    def _fusions(self, model: FusionModel, processor_ms: float) -> Iterator[Tried]:
        """A fusion with its own weights, and with each other pair of weights; all at the cost of its own."""
        ranker = self.recorder.reranker.rankers[model.name]
        if not isinstance(ranker, FusionRanker):
            raise AssertionError(f"{model.name} is a {ranker.info.kind}, and not a fusion; this is a bug")
        own = model.sparse_weight, model.first_stage_weight(self.kind)
        sparse_weights = _SPARSE_WEIGHTS if reads_sparse(model) else (0.0,)
        others = (pair for pair in product(sparse_weights, _FIRST_STAGE_WEIGHTS) if pair != own)
        needs_sparse = not model.cosine_weight or model.path is not None
        pairs = [own, *(pair for pair in others if pair[0] or not needs_sparse)]
        settings = [
            model.model_copy(
                update={"sparse_weight": sparse, "interpolation": InterpolationConfig(first_stage_weight=first_stage)}
            )
            for sparse, first_stage in pairs
        ]
        windows = self._windows(self.first, self.depth)
        orders = self.recorder.fused_orders(f"{model.name}-weights", ranker, settings, windows, _READ)
        for (sparse, first_stage), each in zip(pairs, orders, strict=True):
            is_default = (sparse, first_stage) == own
            yield Tried(Choice(model.name, "", 0, is_default, first_stage, sparse), each, processor_ms)

    def _weighted(self, choice: Choice, stage: ReorderedLists, scores: ModelScores, depth: int) -> Iterator[Tried]:
        """The choice with each weight; an order without scores has none."""
        has_scores = self.infos[choice.model].score_kind is not ScoreKind.RANK
        for weight in _WEIGHTS if has_scores else (0.0,):
            yield Tried.of(choice._replace(weight=weight), stage.then(scores, depth, weight))


def _values(evaluator: Evaluator, orders: Mapping[str, Sequence[str]]) -> list[float]:
    """nDCG@10 of each query."""
    run = {
        query_id: [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(order[:_READ])]
        for query_id, order in orders.items()
    }
    return evaluator.evaluate(run).values(MAIN_MEASURE)
