"""Fits the weights of the fusion to judged lists: from the arguments of `train-fusion` to the settings of a service.

Lists come from a file or from searches of an index, judgements from a file or from a collection.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from rerank_eval.statistics import Comparison, compare

from rerank.checkpoints.bundled import SPLADE_TINY
from rerank.collections import beir, open_collection
from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.config import BUNDLED_MODELS, FusionModel
from rerank.engine.scores import first_stage_scores
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.readers.qrels import Qrel, grades_by_query, read_qrels, with_known_ids
from rerank.retrieval.index import Index
from rerank.types import FirstStage, FirstStageKind, Query
from rerank.util.files import atomic_file, report_disk_errors
from rerank_training.fusion.arguments import FusionArguments
from rerank_training.fusion.weights import Weights, choose, gain, ndcg_of_first_stage, ndcg_of_weights, signals_of
from rerank_training.lists.training_list import TrainingList, graded, read_lists

#: Cache of the sparse encoder, for passages that are in several lists.
_SPARSE_CACHE_BYTES = 500_000_000
#: With fewer lists, a choice of weights is chance, and no gain can be distinguished from 0.
_MIN_LISTS = 20
#: The split of a collection whose judgements are read.
_SPLIT = "test"


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """Comparison of the default weights with the first stage and with chosen weights, by nDCG@10 on judged lists.

    Attributes:
        first_stage: comparison of the first stage's order with the default weights.
        gain: comparison of the weights chosen by cross-validation with the default weights.
        chosen: the weights that are chosen on all lists.
        default: the default weights.
    """

    first_stage: Comparison
    gain: Comparison
    chosen: Weights
    default: Weights

    @property
    def served(self) -> Weights:
        """The chosen weights if their gain is significant, otherwise the default weights."""
        return self.chosen if self.gain.is_better else self.default

    def lines(self, out: Path) -> list[str]:
        """The lines that `train-fusion` prints: both comparisons, the weights in `out`, and the command to serve it."""
        lines = [
            "nDCG@10 within the lists, and the default's",
            f"  the first stage: {_compared(self.first_stage)}",
            f"  {self.chosen}, by cross-validation: {_compared(self.gain)}",
        ]
        if self.served == self.default and self.first_stage.is_better:
            lines.append("The first stage's own order is better: serve the model identity, or judge more queries.")
        lines.append(f"{out} has {self.served}: rerank serve --config {shlex.quote(str(out))}")
        if self.served == self.default:
            lines.append("The gain is not significant: the weights of the default stay.")
        return lines


def train_fusion(
    arguments: FusionArguments, encoder: Encoder | None = None, sparse_encoder: SparseEncoder | None = None
) -> WeightComparison:
    """Chooses weights by cross-validation, prints what they gain, and writes the settings of a service.

    Args:
        encoder, sparse_encoder: the encoders that `arguments` names, if they are loaded already.

    Raises:
        ConfigError, CollectionError, CheckpointError, IndexMismatch: an input cannot be used, or `out` exists.
    """
    if arguments.out.exists():
        raise ConfigError(f"{arguments.out} exists already; remove it first or choose another --out")
    check_sources(arguments)
    encoder = encoder or Encoder(arguments.encoder or DEFAULT_ENCODER)
    sparse = sparse_encoder or SparseEncoder(arguments.sparse_encoder or SPLADE_TINY, cache_bytes=_SPARSE_CACHE_BYTES)
    lists = _enough(graded(read_judged_lists(arguments, encoder, lambda: sparse), arguments.lists or arguments.index))
    model = FusionModel(name="default", ranker="fusion", cosine_depth=arguments.depth_of_cosines)
    default = Weights(arguments.default_weight, model.sparse_weight)
    tried = Weights.tried(default)
    rows = [
        (ndcg_of_first_stage(item), *ndcg_of_weights(item, tried, model))
        for item in signals_of(lists, encoder, sparse, console)
    ]
    first_stage, *of_weights = np.array(rows).T
    values = np.array(of_weights)
    of_first_stage = compare(first_stage, values[0])
    verdict = WeightComparison(of_first_stage, gain(values, arguments.seed), tried[choose(values)], default)
    _write_settings(arguments, verdict.served)
    print("\n".join(verdict.lines(arguments.out)), flush=True)
    return verdict


def check_sources(arguments: FusionArguments) -> None:
    """Raises: ConfigError unless there is exactly one source of lists, of judgements and of the texts of queries."""
    _one_of("lists", {"--lists": arguments.lists, "--index": arguments.index})
    judgements = {"--qrels": arguments.qrels, "--collection": arguments.collection}
    if arguments.index:
        _one_of("judgements", judgements)
        _one_of("texts of queries", {"--queries": arguments.queries, "--collection": arguments.collection})
    elif any(judgements.values()):  # the lists of build-lists have grades
        _one_of("judgements", judgements)


def read_judged_lists(
    arguments: FusionArguments, encoder: Encoder, sparse_encoder: Callable[[], SparseEncoder]
) -> Sequence[TrainingList]:
    """The lists of a file, or of searches of an index.

    Raises:
        CollectionError: a file cannot be read, or queries and judgements share no ids.
        IndexMismatch: there is no such index, or it was built with other encoders.
    """
    if arguments.collection:
        collection = open_collection(arguments.collection)
        queries, qrels = collection.queries(), collection.qrels(_SPLIT)
    else:
        queries = beir.queries(arguments.queries) if arguments.queries else []
        qrels = read_qrels(arguments.qrels) if arguments.qrels else []
    if arguments.index:
        index = Index(arguments.index, encoder, sparse_encoder)
        return list(_searched(index, arguments, queries, qrels))
    if arguments.lists is None:
        raise ConfigError("neither --lists nor --index is given; this is a bug")
    return read_lists(arguments.lists, qrels or None)


def _searched(
    index: Index, arguments: FusionArguments, queries: Sequence[Query], qrels: Sequence[Qrel]
) -> Iterator[TrainingList]:
    """The lists that searches of the index find, with the vectors of their passages."""
    query_ids = {query.query_id for query in queries}
    named = with_known_ids(qrels, lambda _: query_ids, lambda doc_ids: index.store.texts(sorted(doc_ids)))
    grades = grades_by_query(named)
    judged = [query for query in queries if query.query_id in grades]
    if not judged:
        raise CollectionError(
            f"none of the {len(queries)} queries is judged; check that judgements and queries have the same query_ids"
        )
    for query in with_progress(judged, "searches", len(judged), console):
        found = judged_list(index, arguments.first_stage, query, arguments.depth, grades[query.query_id])
        if found is not None:
            yield found


def judged_list(
    index: Index, first_stage: FirstStage, query: Query, depth: int, grades: Mapping[str, int]
) -> TrainingList | None:
    """The candidates of a query with their vectors and grades; None if there are fewer than two."""
    query = index.with_word_table(query)
    found = index.candidates(first_stage, query, depth)
    if len(found) < 2:
        return None
    relevance = tuple(float(grades.get(passage.doc_id, 0)) for passage in found)
    return TrainingList(query, found, relevance, tuple(first_stage_scores([passage.score for passage in found])))


def _one_of(what: str, given: Mapping[str, object]) -> None:
    flags = [flag for flag, value in given.items() if value]
    if len(flags) != 1:
        found = f"{' and '.join(flags)} are" if flags else "none of them is"
        raise ConfigError(f"{what} come from one of {', '.join(given)}, but {found} given; give exactly one")


def _enough(lists: Sequence[TrainingList]) -> Sequence[TrainingList]:
    """The lists. Raises: CollectionError if there are fewer than 20."""
    if len(lists) < _MIN_LISTS:
        raise CollectionError(
            f"{len(lists)} judged lists have passages of different grades; at least {_MIN_LISTS} are needed: judge "
            "more queries, or retrieve more passages"
        )
    return lists


def _compared(c: Comparison) -> str:
    low, high = c.interval
    return (
        f"{c.mean:.4f} on {c.queries} lists, {c.difference:+.4f} from the default's {c.reference:.4f} "
        f"(95 % interval {low:+.4f} to {high:+.4f}, p = {c.p:.2g})"
    )


def _write_settings(arguments: FusionArguments, weights: Weights) -> None:
    """Writes the settings of a service whose default model has these weights, with the encoders of the training."""
    out, by_list = arguments.out, isinstance(weights.first_stage, FirstStageKind)
    default = {
        "name": "default",
        "ranker": "fusion",
        **({} if by_list else {"first_stage_weight": weights.first_stage}),
        "sparse_weight": weights.sparse,
        **({} if arguments.index else {"cosine_depth": arguments.cosine_depth}),
    }
    encoders = {"encoder": arguments.encoder, "sparse_encoder": arguments.sparse_encoder}
    others = [model.model_dump(mode="json", exclude_unset=True) for model in BUNDLED_MODELS[1:]]
    settings: dict[str, object] = {name: given for name, given in encoders.items() if given}
    settings |= {"first_stage_weight": str(weights.first_stage)} if by_list else {}
    settings |= {"models": [default, *others]}
    with report_disk_errors(out, "choose another --out"), atomic_file(out) as temporary:
        temporary.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
