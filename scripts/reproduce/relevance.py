"""Measures the relevance of results on judged lists, and fits its two numbers for the settings of an encoder.

    python -m scripts.reproduce.relevance --requests requests.jsonl --qrels qrels.txt --rel 2
    python -m scripts.reproduce.relevance --requests run.trec --qrels my-corpus --encoder DIR --fit

Each list counts twice: with its query, and with the query of another list, which has nothing relevant in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rerank_eval.datasets import open_datasets
from rerank_eval.report import markdown_table
from rerank_eval.settings import TrecDLSettings
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from rerank.collections import is_collection
from rerank.commands.run import run
from rerank.config.encoder import DEFAULT_ENCODER
from rerank.config.relevance import RelevanceCurve
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.candidates import CandidateList
from rerank.readers.qrels import grades_by_query
from rerank.reranking.relevance import probability
from rerank.types import Vector, with_title

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

#: Bins of equal width for the calibration error.
_BINS = 10


class JudgedList(NamedTuple):
    """The passages of one list: (n,) cosines with a query, and (n,) whether each is judged relevant to it."""

    cosines: npt.NDArray[np.float64]
    is_relevant: npt.NDArray[np.bool_]


class Source(NamedTuple):
    """The lists of one file with their queries, and the same lists with queries of others."""

    name: str
    own: Sequence[JudgedList]
    foreign: Sequence[JudgedList]

    def half(self, first: int) -> Source:
        """Every second list, from the first (0) or the second (1) on."""
        return Source(self.name, self.own[first::2], self.foreign[first::2])


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


@app.command()
def main(
    requests: Annotated[
        list[Path], typer.Option(help="RankLLM request file or TREC run: queries with their candidates. Repeatable.")
    ],
    qrels: Annotated[
        list[str],
        typer.Option(
            help="Judgements of each --requests: a file in the form of TREC or BEIR. For a TREC run, the collection "
            "with its passages: pydoc, or a folder in BEIR layout."
        ),
    ],
    encoder: Annotated[str, typer.Option(help="Name, folder or settings of the encoder.")] = DEFAULT_ENCODER,
    rel: Annotated[int, typer.Option(min=1, help="Least grade that counts as relevant.")] = 1,
    depth: Annotated[int, typer.Option(min=2, max=1000, help="Number of candidates of each query.")] = 100,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the curve on every second query, and measure it on the others.")
    ] = False,
) -> None:
    """Print the measures of each source by the curve of the encoder; with --fit also by a fitted one, and that."""
    if len(requests) != len(qrels):
        raise ConfigError(f"{len(requests)} --requests and {len(qrels)} --qrels; give one for each")
    loaded = Encoder(encoder)
    if not fit and loaded.relevance is None:
        raise ConfigError(f"encoder {encoder} has no relevance; fit it with --fit")
    sources = [_source(loaded, *given, depth, rel) for given in zip(requests, qrels, strict=True)]
    curves = {"present": loaded.relevance} if loaded.relevance else {}
    if fit:
        halves = [source.half(0) for source in sources]
        curves["fitted"] = fit_curve([item for half in halves for item in (*half.own, *half.foreign)])
        sources = [source.half(1) for source in sources]
    rows = [
        (source.name, str(len(source.own)), name, *(f"{value:.3f}" for value in measure(curve, source)))
        for source in sources
        for name, curve in curves.items()
    ]
    print(markdown_table(("lists", "queries", "curve", "ECE", "AUC", "silent", "answered"), rows))
    if fit:
        numbers = ", ".join(f"{name}: {value:.3f}" for name, value in curves["fitted"])
        print(f"encoder: {{name: {encoder}, relevance: {{{numbers}}}}}")


def _source(encoder: Encoder, path: Path, judgements: str, depth: int, rel: int) -> Source:
    """The judged lists of a file."""
    is_named = is_collection(judgements) and not Path(judgements).is_file()  # judgements may end in .tsv, too
    files, collection = ([], [judgements]) if is_named else ([judgements], [])
    settings = TrecDLSettings(requests=[path], qrels=files, collection=collection, depth=depth, out=Path())
    (dataset,) = open_datasets(settings)
    grades, lists = grades_by_query(dataset.qrels), dataset.lists or {}
    judged = [CandidateList(dataset.queries[name], tuple(lists[name])) for name in lists if name in grades]
    texts = list({with_title(c.text, c.title) for item in judged for c in item.candidates})
    of_passage = dict(zip(texts, encoder.encode_passages(texts, "auto"), strict=True))
    of_query = encoder.encode_queries([item.query.text for item in judged])
    shift = max(1, len(judged) // 2)
    own, foreign = list[JudgedList](), list[JudgedList]()
    for place, item in enumerate(judged):
        own.append(_judged(item, of_query[place], of_passage, grades[item.query.query_id], rel))
        other = grades[judged[place - shift].query.query_id]
        given = tuple(c for c in item.candidates if other.get(c.doc_id, 0) < rel)
        foreign.append(_judged(replace(item, candidates=given), of_query[place - shift], of_passage, {}, rel))
    return Source(f"{path.parent.name}/{path.name}", own, foreign)


def _judged(
    item: CandidateList, query: Vector, of_passage: Mapping[str, Vector], grades: Mapping[str, int], rel: int
) -> JudgedList:
    cosines = [float(of_passage[with_title(c.text, c.title)] @ query) for c in item.candidates]
    is_relevant = [grades.get(c.doc_id, 0) >= rel for c in item.candidates]
    return JudgedList(np.array(cosines), np.array(is_relevant, dtype=np.bool_))


def fit_curve(lists: Sequence[JudgedList]) -> RelevanceCurve:
    """Fits the curve of maximum likelihood to all passages.

    Raises: CollectionError if relevant or other passages are missing, or a higher cosine means less relevance.
    """
    cosines, is_relevant = (np.concatenate(values) for values in zip(*lists, strict=True))
    if len(set(is_relevant.tolist())) < 2:
        raise CollectionError(
            f"{int(is_relevant.sum())} of {len(is_relevant)} passages are relevant, and a fit needs relevant and other "
            "ones; give lists with judgements, or another --rel"
        )
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(cosines[:, None], is_relevant)  # next to no regularization
    if (slope := float(fitted.coef_[0, 0])) <= 0:
        raise CollectionError(
            "passages with a lower cosine are relevant more often: the encoder does not fit these judgements; use "
            "another encoder"
        )
    return RelevanceCurve(intercept=float(fitted.intercept_[0]), slope=slope)


def measure(curve: RelevanceCurve, source: Source) -> RelevanceMeasures:
    """The measures of a curve on the lists of a source."""
    found = [_relevances(curve, item) for item in source.own]
    values, is_relevant = np.concatenate(found), np.concatenate([item.is_relevant for item in source.own])
    return RelevanceMeasures(
        calibration_error(values, is_relevant),
        float(roc_auc_score(is_relevant, values)),
        float(np.mean([_relevances(curve, item).max(initial=0.0) <= 0.5 for item in source.foreign])),
        float(
            np.mean([row.max() > 0.5 for row, item in zip(found, source.own, strict=True) if item.is_relevant.any()])
        ),
    )


def _relevances(curve: RelevanceCurve, item: JudgedList) -> npt.NDArray[np.float64]:
    return np.array([probability(curve.intercept + curve.slope * cosine) for cosine in item.cosines])


def calibration_error(values: npt.NDArray[np.float64], is_relevant: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error (Guo et al., ICML 2017, equation 3), over bins of equal width."""
    bins = np.minimum((values * _BINS).astype(int), _BINS - 1)
    return sum(abs(float((values - is_relevant)[bins == number].sum())) for number in range(_BINS)) / len(values)


if __name__ == "__main__":
    run(app)
