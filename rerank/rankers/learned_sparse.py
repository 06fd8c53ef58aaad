"""Learned sparse vectors as a ranker: scores each passage by the dot product of its weights of terms with the query's.

SPLADE (Formal et al., arXiv 2109.10086) and models like it. Passages of an index that has their vectors cost no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from rerank.errors import InvalidRequest
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import RankerInfo
from rerank.types import EncodedWindow, Passage, Prepared, Query, ScoreKind, Window, WindowRanking

_MOST_PASSAGES = 1000


class LearnedSparseRanker:
    """Scores passages by their sparse vectors.

    Args:
        encoder: of the vectors; it keeps what it computed of texts for later requests.
    """

    def __init__(self, encoder: SparseEncoder) -> None:
        self._encoder = encoder
        self.info = RankerInfo(
            kind="learned-sparse",
            model_id=encoder.id.name,
            model_revision=encoder.id.sha256,
            template_sha256="",
            max_window_size=_MOST_PASSAGES,
            score_kind=ScoreKind.POINTWISE,
            batching="packed",
            max_passage_tokens=encoder.id.max_tokens,
            max_window_tokens=encoder.id.max_tokens * _MOST_PASSAGES,
            reads_sparse=True,
            on_accelerator=encoder.device.type == "cuda",
            precision=encoder.pick_dtype("auto"),
        )

    def filled(self, passage: Passage) -> Passage:
        """See CachingRanker."""
        return self._encoder.cache.filled(passage)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Computes the scores: of passages without a vector only for the terms of the query.

        Raises:
            InvalidRequest: the query is longer than the encoder reads.
        """
        if (tokens := self._encoder.query_tokens(query.text)) > (limit := self._encoder.id.max_tokens):
            raise InvalidRequest(
                "query",
                f"the query is {tokens} tokens long, but {self._encoder.id.name} reads at most {limit}; shorten it",
                {"tokens": str(tokens), "limit": str(limit)},
            )
        scored = tuple(self._encoder.scored(self._encoder.encode_query(query.text), passages))
        truncated = tuple(each.doc_id for each in scored if each.sparse and each.sparse.is_truncated)
        return Prepared(query, scored, truncated)

    def encode(self, window: Window) -> EncodedWindow:
        """The window as it is: its passages have their scores."""
        return EncodedWindow(window, tokens=len(window.passages))

    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """The scores that `prepare` computed."""
        return [
            WindowRanking(
                tuple(passage.sparse_score or 0.0 for passage in encoded.window.passages),
                cached_passages=sum(passage.sparse_cached for passage in encoded.window.passages),
            )
            for encoded in windows
        ]
