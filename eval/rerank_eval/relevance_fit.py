"""Fits the relevance of a model's results to judged lists, and measures it.

Each list is ranked twice: with its own query, and with the query of another list, for which nothing in it is relevant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from rerank.checkpoints.relevance import RelevanceCurve, RelevanceCurves, Signal, relevance
from rerank.collections import is_collection
from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.config import ServiceConfig, load_config
from rerank.config.named import config_of_model
from rerank.errors import CollectionError, ConfigError
from rerank.readers.qrels import Qrel, grades_by_query
from rerank.readers.requests import CandidateList
from rerank.reranking.blocking import Reranker
from rerank.reranking.relevance import signal_encoders, signals_by_text
from rerank.types import Query, RankOptions
from rerank_eval.report import markdown_table
from rerank_eval.settings import RelevanceSettings, TrecDLSettings
from rerank_eval.tasks import open_tasks

#: Bins of equal width by which the calibration error is measured.
_BINS = 10


class JudgedPassage(NamedTuple):
    """One passage of a list: the value of each of its signals, and whether it is judged relevant."""

    signals: Mapping[str, float]
    is_relevant: bool


#: The passages of one list.
JudgedList: TypeAlias = Sequence[JudgedPassage]


class RankedLists(NamedTuple):
    """The lists of one source with their own queries, and the same lists with queries of others."""

    name: str
    own: Sequence[JudgedList]
    foreign: Sequence[JudgedList]

    def half(self, first: int) -> RankedLists:
        """Every second list, from the first (0) or the second (1) on."""
        return RankedLists(self.name, self.own[first::2], self.foreign[first::2])


class RelevanceMeasures(NamedTuple):
    """Measures of relevances as probabilities.

    Attributes:
        ece: expected calibration error over 10 bins of equal width: mean |mean relevance - share of relevant|.
        auc: probability that a relevant result of any query has more relevance than an irrelevant one of any query.
        silent: share of the lists with nothing relevant where no result is above 0.5.
        answered: share of the lists with a relevant passage where some result is above 0.5.
    """

    ece: float
    auc: float
    silent: float
    answered: float


def evaluate_relevance(settings: RelevanceSettings) -> None:
    """Prints the measures of each source. With `fit`, curves of one half are measured on the other, and printed.

    Raises:
        ConfigError: settings do not fit each other, or the model has no curve.
        CollectionError: a file cannot be read, or does not fit the others.
        CheckpointError: the model cannot be loaded.
    """
    if len(settings.requests) != len(settings.qrels):
        raise ConfigError(f"{len(settings.requests)} --requests and {len(settings.qrels)} --qrels; give one for each")
    sources = [_read(*given, settings.depth) for given in zip(settings.requests, settings.qrels, strict=True)]
    config, name = _config(settings)
    with Reranker(config) as reranker:
        own_curves = next(model.info.relevance for model in reranker.models() if model.name == name)
        if not own_curves and not settings.fit:
            raise ConfigError(f"model {name} gives no relevance; fit it with --fit")
        ranked = [
            RankedLists(
                f"{path.parent.name}/{path.name}",
                _ranked(reranker, name, requests, qrels, settings.rel, 0),
                _ranked(reranker, name, requests, qrels, settings.rel, max(1, len(requests) // 2)),
            )
            for path, (requests, qrels) in zip(settings.requests, sources, strict=True)
        ]
        encoders = signal_encoders(model.info for model in reranker.models())
    if not settings.fit:
        _print_measures(ranked, own_curves)
        return
    curves = _fit([result.half(0) for result in ranked], encoders)
    _print_measures([result.half(1) for result in ranked], curves)
    given = [curve.model_dump(exclude_defaults=True) for curve in curves]
    block = yaml.safe_dump({"relevance": given}, sort_keys=False)
    console.print(f"for model {name} in service.yaml:\n{block}", soft_wrap=True)


def _config(settings: RelevanceSettings) -> tuple[ServiceConfig, str]:
    """The settings of the service, and the name of the model in them."""
    if settings.config is None:
        config = config_of_model(settings.model)
        return config, config.models[0].name
    config = load_config(settings.config)
    if settings.model not in (names := [model.name for model in config.models]):
        raise ConfigError(f"model {settings.model!r} is not one of {', '.join(names)} in {settings.config}")
    return config, settings.model


def _read(path: Path, judgements: str, depth: int) -> tuple[list[CandidateList], Sequence[Qrel]]:
    """The lists of the judged queries, and the judgements."""
    qrels, collection = ([], [judgements]) if is_collection(judgements) else ([judgements], [])
    settings = TrecDLSettings(requests=[path], qrels=qrels, collection=collection, depth=depth, out=Path())
    (task,) = open_tasks(settings)
    judged, lists = {qrel.query_id for qrel in task.qrels}, task.lists or {}
    return [CandidateList(task.queries[name], tuple(lists[name])) for name in lists if name in judged], task.qrels


def _ranked(
    reranker: Reranker, model: str, requests: Sequence[CandidateList], qrels: Sequence[Qrel], rel: int, shift: int
) -> list[JudgedList]:
    """The lists after ranking, each with the query of the list `shift` places before it, modulo their number.

    Passages that are relevant to a query of another list are left out.
    """
    grades = grades_by_query(qrels)

    def is_relevant(query: Query, doc_id: str) -> bool:
        return grades[query.query_id].get(doc_id, 0) >= rel

    lists = list[JudgedList]()
    title = f"{'others' if shift else 'own'} queries, lists"
    for place, request in enumerate(with_progress(requests, title, len(requests), console)):
        query = requests[place - shift].query
        given = [candidate for candidate in request.candidates if not shift or not is_relevant(query, candidate.doc_id)]
        ranking = reranker.rerank(query, given, RankOptions(model=model))
        passages = [item.passage for item in sorted(ranking.ranked, key=lambda item: item.position)]
        signals = signals_by_text(ranking.trace.windows, ranking.trace.model, passages)
        if passages and not signals:
            raise ConfigError(f"{ranking.trace.strategy} gives no signal; fit a model with a preranker that does")
        lists.append(
            [JudgedPassage(signals.get(passage.text, {}), is_relevant(query, passage.doc_id)) for passage in passages]
        )
    return lists


def _fit(ranked: Sequence[RankedLists], encoders: Mapping[str, str]) -> RelevanceCurves:
    """The curves of the signals that the lists have. `encoders`: signal → SHA-256 of the encoder behind it."""
    lists = [item for of_source in ranked for item in (*of_source.own, *of_source.foreign)]
    given = {signal for item in lists for passage in item for signal in passage.signals}
    signals: Sequence[tuple[Signal, ...]] = (
        [("score",)] if "score" in given else [("cosine", "sparse"), ("cosine",), ("sparse",)]
    )
    fitted = (fit_curve(lists, signal, encoders) for signal in signals if given.issuperset(signal))
    return tuple(curve for curve in fitted if curve is not None)


def fit_curve(
    lists: Sequence[JudgedList], signals: Sequence[Signal], encoders: Mapping[str, str]
) -> RelevanceCurve | None:
    """Fits the curve of maximum likelihood to all passages that have these signals.

    Returns None if more of one of several signals would mean less relevance: each of them then has its own curve only.

    Args:
        encoders: signal → SHA-256 of the encoder behind it.

    Raises:
        CollectionError: relevant or irrelevant passages are missing, or more of a single signal means less relevance.
    """
    known = [passage for item in lists for passage in item if passage.signals.keys() >= set(signals)]
    is_relevant = np.array([passage.is_relevant for passage in known], dtype=bool)
    if len(set(is_relevant.tolist())) < 2:
        raise CollectionError(
            f"{int(is_relevant.sum())} of {len(is_relevant)} passages are relevant, and a fit needs relevant and other "
            "ones; give lists with judgements, or another --rel"
        )
    values = np.array([[passage.signals[signal] for signal in signals] for passage in known])
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(values, is_relevant)  # next to no regularization
    slopes = dict(zip(signals, fitted.coef_[0].tolist(), strict=True))
    if min(slopes.values()) < 0:
        if len(signals) > 1:
            return None
        problem = f"passages with a lower {signals[0]} are relevant more often"
        raise CollectionError(f"{problem}: the model's scores do not fit these judgements")
    of_encoders = {signal: encoders[signal] for signal in signals if signal in encoders}
    return RelevanceCurve(intercept=float(fitted.intercept_[0]), slopes=slopes, encoders=of_encoders)


def measure(curves: RelevanceCurves, lists: Sequence[JudgedList], foreign: Sequence[JudgedList]) -> RelevanceMeasures:
    """The measures of curves on lists, and on `foreign` lists with nothing relevant."""
    found, truths = _relevances(curves, lists), [np.array([passage.is_relevant for passage in row]) for row in lists]
    values, is_relevant = np.concatenate(found), np.concatenate(truths).astype(bool)
    best = [max(row, default=0.0) for row in _relevances(curves, foreign)]
    return RelevanceMeasures(
        calibration_error(values, is_relevant),
        float(roc_auc_score(is_relevant, values)),
        float(np.mean([highest <= 0.5 for highest in best])),
        float(np.mean([row.max() > 0.5 for row, truth in zip(found, truths, strict=True) if truth.any()])),
    )


def _relevances(curves: RelevanceCurves, lists: Sequence[JudgedList]) -> list[npt.NDArray[np.float64]]:
    return [np.array([relevance(curves, passage.signals) or 0.0 for passage in item]) for item in lists]


def calibration_error(values: npt.NDArray[np.float64], is_relevant: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error (Guo et al., ICML 2017, equation 3), over bins of equal width."""
    bins = np.minimum((values * _BINS).astype(int), _BINS - 1)
    return sum(abs(float((values - is_relevant)[bins == number].sum())) for number in range(_BINS)) / len(values)


def _print_measures(ranked: Sequence[RankedLists], curves: RelevanceCurves) -> None:
    head = ("lists", "queries", "ECE", "AUC", "silent", "answered")
    console.print(markdown_table(head, list(_rows(ranked, curves))), soft_wrap=True)
    console.print(
        "silent: share of lists with nothing relevant that have no result above 0.5. answered: share of lists with a "
        "relevant passage that have one.",
        soft_wrap=True,
    )


def _rows(ranked: Sequence[RankedLists], curves: RelevanceCurves) -> Iterator[tuple[str, ...]]:
    for result in ranked:
        yield (
            result.name,
            str(len(result.own)),
            *(f"{value:.3f}" for value in measure(curves, result.own, result.foreign)),
        )
