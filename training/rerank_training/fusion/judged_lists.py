"""Judged lists of a user: of a file, or searches of an index, with judgements of a file or of a collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rerank.collections import beir, open_collection
from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.engine.scores import candidate_scores
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.retrieval.index import Index
from rerank.types import FirstStage, Query
from rerank_training.fusion.arguments import FusionArguments
from rerank_training.lists.files import read_lists
from rerank_training.lists.training_list import TrainingList

#: The judgements of a collection that are read.
_SPLIT = "test"


def check_sources(arguments: FusionArguments) -> None:
    """Raises: ConfigError unless there is one source of lists, of their judgements and of the texts of queries."""
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
        IndexMismatch: there is no such index, or it has other encoders.
    """
    if arguments.collection:
        collection = open_collection(arguments.collection)
        queries, qrels = collection.queries(), collection.qrels(_SPLIT)
    else:
        queries = beir.queries(arguments.queries) if arguments.queries else []
        qrels = read_qrels(arguments.qrels) if arguments.qrels else []
    grades = grades_by_query(qrels) if qrels else None
    if arguments.index:
        index = Index(arguments.index, encoder, sparse_encoder)
        return list(_searched(index, arguments, queries, grades or {}))
    if arguments.lists is None:
        raise ConfigError("neither --lists nor --index is given; this is a bug")
    return read_lists(arguments.lists, grades)


def _searched(
    index: Index, arguments: FusionArguments, queries: Sequence[Query], grades: Mapping[str, Mapping[str, int]]
) -> Iterator[TrainingList]:
    """The lists that searches of the index find, with the vectors of their passages."""
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
    found = index.candidates(first_stage, query, depth)
    if len(found) < 2:
        return None
    relevance = tuple(float(grades.get(passage.doc_id, 0)) for passage in found)
    return TrainingList(query, found, relevance, tuple(candidate_scores(found)))


def _one_of(what: str, given: Mapping[str, object]) -> None:
    flags = [flag for flag, value in given.items() if value]
    if len(flags) != 1:
        found = f"{' and '.join(flags)} are" if flags else "none of them is"
        raise ConfigError(f"{what} come from one of {', '.join(given)}, but {found} given; give exactly one")
