"""RerankTransformer: a PyTerrier transformer that reranks the results of a pipeline. Needs the extra `pyterrier`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from rerank.client.client import RerankClient
from rerank.errors import ConfigError, InvalidRequest, RerankError
from rerank.protobuf.fields import request_message
from rerank.types import Passage, RankOptions
from rerank.v1 import rerank_pb2 as pb

try:
    import pandas as pd
    import pyterrier as pt
except ModuleNotFoundError as missing:
    problem = f"RerankTransformer needs {missing.name}, which is not installed; install rerank-listwise[pyterrier]"
    raise ConfigError(problem) from missing

if TYPE_CHECKING:
    from rerank.reranking.blocking import Reranker  # imports torch, which a client of a service does not need

_Options: TypeAlias = dict[str, Any]
#: A query with its candidates.
_List: TypeAlias = tuple[str, list[Passage]]
#: The positions of a query's rows, best first, their scores, and column of EXECUTION_COLUMNS → value.
_Ranked: TypeAlias = tuple[list[int], list[float], dict[str, Any]]
#: (lists, options, whether to show a progress bar) → the ranking of each list.
_Rank: TypeAlias = Callable[[list[_List], _Options, bool], Iterator[_Ranked]]

#: Column with facts about the ranking of the row's query → its type.
EXECUTION_COLUMNS = {
    "rerank_model": "object",
    "rerank_completeness": "object",
    "rerank_windows": "int64",
    "rerank_ms": "float64",
}


class RerankTransformer(pt.Transformer):  # type: ignore[misc]  # its types are not always there
    """Reranks the results of each query: R(qid, query, docno, text) → R with score, rank and EXECUTION_COLUMNS.

    All other columns are kept. The rows of a query are candidates in the order of `rank`, or else of falling `score`.
    If there is neither column, the order of the rows has no effect.

    Args:
        reranker: a Reranker in this process, or the client of a service.
        text: name of the column of the texts.
        verbose: whether a progress bar counts the queries.
        options: fields of RankOptions, or with a client of RerankRequest, such as model="pe-rank" or top_n=10.

    Raises:
        InvalidRequest: there is no such option, or it cannot have the value.
    """

    def __init__(
        self, reranker: Reranker | RerankClient, text: str = "text", verbose: bool = False, **options: Any
    ) -> None:
        if isinstance(reranker, RerankClient):
            request_message(pb.RerankRequest, options)
            self._rank: _Rank = partial(_in_service, reranker)
        else:
            _rank_options(options)
            self._rank = partial(_in_process, reranker)
        self._reranker, self._text, self._verbose, self._options = reranker, text, verbose, options

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"RerankTransformer({self._reranker!r}{given})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The rows of each query, best first. If there are no rows, the result has the new columns all the same.

        Raises:
            pt.validate.InputValidationError: a column is missing.
            InvalidRequest: a query has a docno twice, or a query or a text is not a string.
            RerankError: see Reranker.rerank and RerankClient.rerank; no query is returned then.
        """
        with pt.validate.any(inp, context=self) as columns:
            columns.columns(includes=["qid", "query", "docno", self._text], mode="pt.text.get_text adds texts")
        _check_rows(inp, self._text)
        lists = [_first_stage_order(rows) for _, rows in inp.groupby("qid", sort=False)]
        options = {"ordered": not {"rank", "score"}.isdisjoint(inp.columns)} | self._options
        rankings = self._rank(
            [(rows["query"].iloc[0], self._candidates(rows)) for rows in lists], options, self._verbose
        )
        reranked = [_reranked(rows, *ranked) for rows, ranked in zip(lists, rankings, strict=True)]
        return pd.concat(reranked, ignore_index=True) if reranked else _without_rows(inp)

    def _candidates(self, rows: pd.DataFrame) -> list[Passage]:
        scores: list[Any] = [None] * len(rows)
        if "score" in rows.columns and rows["score"].notna().all():
            scores = rows["score"].astype(float).tolist()
        return [
            Passage(str(docno), text, score=score)
            for docno, text, score in zip(rows["docno"], rows[self._text], scores, strict=True)
        ]


def _first_stage_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a query, best first, if it has a column `rank` or `score`; otherwise as they are."""
    if "rank" in rows.columns:
        return rows.sort_values("rank", kind="stable")
    return rows.sort_values("score", ascending=False, kind="stable") if "score" in rows.columns else rows


def _in_process(reranker: Reranker, lists: list[_List], options: _Options, verbose: bool) -> Iterator[_Ranked]:
    for ranking in reranker.rerank_many(lists, _rank_options(options), verbose):
        if isinstance(ranking, RerankError):
            raise ranking
        trace = ranking.trace
        ran = (trace.model, trace.completeness.value, len(trace.windows), trace.total_ms)
        positions, scores = [item.position for item in ranking.ranked], [item.score for item in ranking.ranked]
        yield positions, scores, dict(zip(EXECUTION_COLUMNS, ran, strict=True))


def _in_service(client: RerankClient, lists: list[_List], options: _Options, verbose: bool) -> Iterator[_Ranked]:
    for reply in client.rerank_many(lists, show_progress_bar=verbose, **options):
        if isinstance(reply, RerankError):
            raise reply
        execution = reply.execution
        completeness = pb.Completeness.Name(execution.completeness).removeprefix("COMPLETENESS_").lower()
        ran = (execution.model, completeness, execution.windows, execution.total_ms)
        positions, scores = [item.original_position for item in reply.results], [item.score for item in reply.results]
        yield positions, scores, dict(zip(EXECUTION_COLUMNS, ran, strict=True))


def _rank_options(options: _Options) -> RankOptions:
    """The options as RankOptions. Raises: InvalidRequest if it has no field of an option's name."""
    if unknown := options.keys() - RankOptions.__dataclass_fields__.keys():
        known = ", ".join(RankOptions.__dataclass_fields__)
        raise InvalidRequest(min(unknown), f"RankOptions has no such field; fields: {known}")
    return RankOptions(**options)


def _check_rows(inp: pd.DataFrame, text: str) -> None:
    """Raises: InvalidRequest if a query has a docno twice, or a query or a text is not a string."""
    if (twice := inp.duplicated(["qid", "docno"])).any():
        row = inp[twice].iloc[0]
        raise InvalidRequest(
            "docno",
            f"query {row['qid']!r} has docno {row['docno']!r} more than once; use drop_duplicates(['qid', 'docno'])",
        )
    for column in ("query", text):
        for qid, docno, value in zip(inp["qid"], inp["docno"], inp[column], strict=True):
            if not isinstance(value, str):
                raise InvalidRequest(column, f"query {qid!r}, docno {docno!r} has {value!r} there; give a string")


def _reranked(rows: pd.DataFrame, positions: list[int], scores: list[float], ran: dict[str, Any]) -> pd.DataFrame:
    """The rows of a query in their new order, with new scores, ranks and EXECUTION_COLUMNS."""
    first = pt.model.FIRST_RANK
    return rows.iloc[positions].assign(score=scores, rank=range(first, first + len(positions)), **ran)


def _without_rows(inp: pd.DataFrame) -> pd.DataFrame:
    columns = {"score": "float64", "rank": "int64", **EXECUTION_COLUMNS}
    return inp.assign(**{name: pd.Series(dtype=kind) for name, kind in columns.items()})
