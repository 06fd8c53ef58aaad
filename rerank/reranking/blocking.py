"""Reranker: reranking and search in this process for code without an event loop, such as notebooks and scripts."""

from __future__ import annotations

import math
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from rerank.config import ServiceConfig
from rerank.config.named import config_of_model
from rerank.errors import InvalidRequest, Overloaded, RerankError, UsageError
from rerank.names import DEFAULT_FIRST_STAGE
from rerank.rankers.base import Ranker
from rerank.reranking.registry import ModelDescription
from rerank.reranking.reranker import SearchResult, load_reranker
from rerank.types import (
    CandidateLike,
    FeedbackMethod,
    FeedbackSettings,
    FirstStage,
    Query,
    Ranking,
    RankOptions,
    candidate_list,
)
from rerank.util.many import ConcurrencyLimit, EventLoopThread, in_order, pair_of, with_bar

T = TypeVar("T")

#: Arguments of `CrossEncoder.rank` and `predict` that are ignored: on batches, devices and progress.
WITHOUT_EFFECT = ("batch_size", "chunk_size", "convert_to_numpy", "device", "num_workers", "pool", "show_progress_bar")
#: Arguments of theirs that would change the result, and are refused unless they are None or false.
_WITH_EFFECT = ("activation_fn", "apply_softmax", "convert_to_tensor", "prompt", "prompt_name")


class Reranker:
    """AsyncReranker for code without an event loop, such as a notebook: `Reranker("pe-rank").rank(query, documents)`.

    Its threads end with the process, or earlier with a `with` block or `close`.

    Args:
        model: the settings of models and engine, or a single model: "default", "pe-rank", "identity", a name on the
            hub as in "castorini/first_mistral", the folder of a checkpoint with a manifest, "PROFILE:FOLDER" or
            "RANKER:FOLDER", see `rerank.config.named.named_model`.

    Raises:
        ConfigError, CheckpointError, IndexMismatch: see `load_reranker`.
    """

    def __init__(self, model: ServiceConfig | str | Path) -> None:
        self._reranker = load_reranker(model if isinstance(model, ServiceConfig) else config_of_model(str(model)))
        self._loop = EventLoopThread("Reranker")
        self._wait(self._reranker.__aenter__())

    def __repr__(self) -> str:
        return repr(self._reranker).replace(
            "AsyncReranker", "closed Reranker" if self._loop.is_closed else "Reranker", 1
        )

    def __enter__(self) -> Reranker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads. The reranker cannot be used afterwards."""
        if not self._loop.is_closed:
            self._wait(self._reranker.__aexit__(None, None, None))
            self._loop.close()

    @property
    def rankers(self) -> Mapping[str, Ranker]:
        """The rankers of the models by name, for code that runs windows without the engine."""
        return self._reranker.rankers

    def models(self) -> list[ModelDescription]:
        """Lists the configured models, the default one first."""
        return self._reranker.models()

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        ordered: bool = False,
        min_relevance: float | None = None,
        **others: object,
    ) -> list[dict[str, Any]]:
        """Ranks texts, called as sentence-transformers' `CrossEncoder.rank` is.

        Unlike there, a text's score depends on the other texts, too, and it is comparable only within the list.

        Args:
            query: the query, which must not be empty.
            documents: the texts; in first-stage order, best first, if they are `ordered`.
            top_k: the number of results, at least 1; None for all.
            return_documents: whether each result has its "text".
            ordered: whether the documents are in the order of a first stage, and the order counts. By default the order
                has no effect, and equal texts get equal scores; see `rerank.reranking.unordered`.
            min_relevance: smallest relevance of a result, 0 to 1; None for all results.
            others: arguments of `CrossEncoder.rank` that have no effect here, as for `predict`.

        Returns:
            Dicts with "corpus_id", the position in `documents`, "score" and, if the model gives it, "relevance": the
            probability that the text answers the query, which is comparable between lists. Best first.

        Raises:
            InvalidRequest: the query is empty, `top_k` is below 1, or the model gives no relevance for `min_relevance`.
            TypeError: an argument of `others` is unknown, or would change the result.
        """
        check_arguments(others)
        Query.of(query)  # an empty query is refused even if there are no documents
        if top_k is not None and top_k < 1:
            raise InvalidRequest("top_k", f"{top_k} is below 1; use a number from 1, or None for all results")
        if not documents:
            return []
        ranking = self.rerank(
            query, documents, RankOptions(top_n=top_k or 0, ordered=ordered, min_relevance=min_relevance)
        )
        return [
            {"corpus_id": item.position, "score": item.score}
            | ({} if item.relevance is None else {"relevance": item.relevance})
            | ({"text": documents[item.position]} if return_documents else {})
            for item in ranking.ranked
        ]

    def predict(
        self,
        pairs: Sequence[tuple[str, str]] | tuple[str, str],
        show_progress_bar: bool | None = False,
        **others: object,
    ) -> npt.NDArray[np.float64] | float:
        """Scores pairs of query and text, called as sentence-transformers' `CrossEncoder.predict` is.

        The texts of one query are ranked as one list, whose order has no effect. A model that reads each text alone,
        such as a cross-encoder, gives scores that are comparable over all pairs. The scores of other models are
        comparable only among the texts of one query, so such a model accepts only pairs with one query.

        Args:
            pairs: (query, text) pairs, or one such pair.
            show_progress_bar: whether to show a progress bar on a terminal or in a notebook.
            others: arguments of `CrossEncoder.predict` that cannot change scores, such as `batch_size`, `num_workers`
                and `convert_to_numpy`. They are accepted and ignored.

        Returns:
            The score of each pair, in their order: (N,) float64; for one pair, a number.

        Raises:
            InvalidRequest: a query is empty, or the pairs have several queries and a model whose scores cannot be
                compared.
            TypeError: a pair is not one, or an argument of `others` is unknown or would change the result.
        """
        check_arguments(others)
        if len(pairs) == 2 and isinstance(pairs[0], str) and not isinstance(pairs, str):
            return float(self.predict([(pairs[0], str(pairs[1]))])[0])  # type: ignore[index]
        indices: dict[str, list[int]] = {}
        given = [pair_of(pair, "(query, text)") for pair in cast(Sequence[tuple[str, str]], pairs)]
        for index, (query, _) in enumerate(given):
            indices.setdefault(query, []).append(index)
        lists = [(query, [given[index][1] for index in own]) for query, own in indices.items()]
        scores = np.zeros(len(given))
        rankings = self.rerank_many(lists, RankOptions(ordered=False), bool(show_progress_bar))
        for own, ranking in zip(indices.values(), rankings, strict=True):
            if isinstance(ranking, RerankError):
                raise ranking
            if len(lists) > 1 and not ranking.score_kind.is_pointwise:
                raise InvalidRequest(
                    "pairs",
                    f"they have {len(lists)} queries, and {ranking.trace.model} ranks the texts of a query "
                    "together: its scores cannot be compared over queries; give the pairs of one query, use `rank`, or "
                    "a model that reads each text alone",
                )
            for item in ranking.ranked:
                scores[own[item.position]] = item.score
        return scores

    def rerank(
        self,
        query: Query | str,
        candidates: Iterable[CandidateLike],
        options: RankOptions | None = None,
        timeout_s: float | None = None,
    ) -> Ranking:
        """See AsyncReranker.rerank. Raises: DeadlineExceeded after `timeout_s` seconds, if it is not None."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s  # as the event loop counts
        return self._wait(self._reranker.rerank(query, candidates, options or RankOptions(), deadline_s))

    def rerank_many(
        self,
        requests: Iterable[tuple[Query | str, Iterable[CandidateLike]]],
        options: RankOptions | None = None,
        show_progress_bar: bool = False,
    ) -> Iterator[Ranking | RerankError]:
        """Reranks many lists, several at a time, whose windows share batches.

        Args:
            requests: pairs of query and candidates, as for `rerank`. At most 64 are read ahead of the answers, so an
                iterator may be of any length.
            options: the options of all requests.
            show_progress_bar: whether to show a progress bar on a terminal or in a notebook.

        Returns:
            The ranking of each request, in the order of the requests; for a failed request the error, which is not
            raised.

        Raises:
            TypeError: a request is not a pair.
            InvalidRequest: a candidate is in none of the forms of CandidateLike.
        """
        limit = ConcurrencyLimit(lambda error: isinstance(error, Overloaded))
        work = self._reranker.rerank

        async def answer(query: Query | str, candidates: Sequence[CandidateLike]) -> Ranking | RerankError:
            try:
                return await limit.run(lambda: work(query, candidates, options or RankOptions()))
            except RerankError as error:
                return error

        def start(request: tuple[Query | str, Iterable[CandidateLike]]) -> Future[Ranking | RerankError]:
            query, candidates = pair_of(request)
            return self._start(answer(query, candidate_list(candidates)))

        return with_bar(in_order(requests, start), requests, show_progress_bar)

    def search(
        self,
        query: Query | str,
        first_stage: FirstStage | str = DEFAULT_FIRST_STAGE,
        depth: int = 100,
        options: RankOptions | None = None,
        feedback: FeedbackSettings | FeedbackMethod | str | None = None,
    ) -> SearchResult:
        """See AsyncReranker.search."""
        return self._wait(self._reranker.search(query, first_stage, depth, options or RankOptions(), feedback=feedback))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._start(work).result()

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop.is_closed:
            work.close()
            raise UsageError("this Reranker is closed; make a new one, or use it inside its `with` block")
        return self._loop.start(work)


def check_arguments(given: Mapping[str, object]) -> None:
    """Raises: TypeError for an argument that `CrossEncoder` does not have, or that would change the result."""
    for name, value in given.items():
        if name in _WITH_EFFECT and value:
            raise TypeError(f"{name} would change the result, which a Reranker does not do; leave it out")
        if name not in (*WITHOUT_EFFECT, *_WITH_EFFECT):
            raise TypeError(
                f"unexpected argument {name!r}; of CrossEncoder's, {', '.join(WITHOUT_EFFECT)} are accepted and ignored"
            )
