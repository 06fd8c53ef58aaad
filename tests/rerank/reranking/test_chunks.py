"""Long documents by their chunks: which chunk is read, MaxP, spans of the text as it was sent, limits, every port."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rerank import InvalidRequest, Query, Ranking, RankOptions
from rerank.checkpoints.relevance import OWN_LOG_ODDS, RelevanceCurve
from rerank.config import Limits
from rerank.engine.job import RankJob
from rerank.engine.strategies import Single, Step
from rerank.models.encoder import Encoder
from rerank.models.vector_cache import VectorCache
from rerank.protobuf.requests import rerank_request, search_request
from rerank.rankers.base import RankerInfo
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.chunks import ChunkedDocuments, Readers
from rerank.reranking.sentences import Places
from rerank.types import Passage, ScoreKind
from rerank.v1 import rerank_pb2 as pb
from tests.fakes import NumberRanker
from tests.serving import reranker_of
from tests.slices import finished

#: Some 20 tokens without a number, which tells the fake ranker nothing.
FILLER = "The history of ships is long and their names are many, as are those of the seas and of the winds. "
QUERY = "how long does a flea live"
FLEA = "A flea lives 7 years. "
LONG = FILLER * 3 + FLEA + FILLER * 3


class ShortSighted(NumberRanker):
    """Reads 24 tokens of a passage: the number in its text is its score."""

    def __init__(self, score_kind: ScoreKind = ScoreKind.WINDOW_LOG_PROB, **info: Any) -> None:
        super().__init__(1000)
        self.info = replace(self.info, max_passage_tokens=24, score_kind=score_kind, **info)


Rank = Callable[..., Ranking]


@pytest.fixture
def rank(encoder: Encoder) -> Rank:
    """Ranks candidates by "short", "pointwise" or "identity"."""

    def run(
        candidates: Sequence[Any], chunks: int = 10, late: bool = False, query: str = QUERY, **options: Any
    ) -> Ranking:
        async def call() -> Ranking:
            rankers = {
                "short": ShortSighted(),
                "pointwise": ShortSighted(ScoreKind.POINTWISE),
                "identity": IdentityRanker(),
            }
            async with reranker_of(encoder, rankers) as reranker:
                deadline = asyncio.get_running_loop().time() - 1 if late else math.inf
                return await reranker.rerank(
                    query, candidates, RankOptions(max_chunks_per_doc=chunks, **options), deadline
                )

        return asyncio.run(call())

    return run


def doc_ids(ranking: Ranking) -> list[str]:
    return [item.passage.doc_id for item in ranking.ranked]


def spans(ranking: Ranking) -> dict[str, tuple[int, int] | None]:
    return {item.passage.doc_id: item.span for item in ranking.ranked}


def test_document_is_ranked_by_the_part_that_shares_words_with_the_query(rank: Rank) -> None:
    ranking = rank([("short", "It lives 3 years."), ("long", LONG), ("ships", FILLER * 6)])
    assert doc_ids(ranking) == ["long", "short", "ships"]
    start, end = spans(ranking)["long"] or (0, 0)
    assert FLEA in LONG[start:end]
    assert len(LONG[start:end]) < len(LONG) / 3
    assert spans(ranking)["short"] is None
    assert spans(ranking)["ships"] == (0, len(FILLER)), "a document without a shared word is read from its beginning"
    assert ranking.ranked[0].passage.text == LONG
    assert not ranking.trace.truncated_doc_ids


@pytest.mark.parametrize("chunks", [0, 1])
def test_no_document_is_divided_unless_the_request_asks_for_it(rank: Rank, chunks: int) -> None:
    ranking = rank([("a", FILLER * 6), ("long", LONG)], chunks)
    assert set(spans(ranking).values()) == {None}


def test_what_follows_the_last_part_is_unread_and_reported(rank: Rank) -> None:
    ranking = rank([("long", LONG), ("short", "It lives 3 years.")], 2)
    assert doc_ids(ranking) == ["short", "long"], "the flea is in the fourth chunk"
    assert ranking.trace.truncated_doc_ids == ("long",)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("top_n", [0, 1, 3, 50])
def test_model_that_reads_passages_alone_gives_a_document_the_place_of_its_best_part(
    rank: Rank, ordered: bool, top_n: int
) -> None:
    """MaxP by a slow reference: the largest number in each document."""
    numbers = random.Random(top_n).sample(range(1, 1000), 40)
    documents = [numbers[place : place + 4] for place in range(0, 40, 4)]
    texts = ["".join(f"{FILLER}This is {number}. " for number in document) for document in documents]
    best = sorted(range(10), key=lambda place: -max(documents[place]))[: top_n or None]
    ranking = rank(
        list(enumerate(texts)), 30, model="pointwise", top_n=top_n, ordered=ordered, strategy="single", window_size=200
    )
    assert [item.position for item in ranking.ranked] == best
    assert [item.score for item in ranking.ranked] == [max(documents[place]) for place in best]
    for item in ranking.ranked:
        start, end = item.span or (0, 0)
        assert f" {max(documents[item.position])}. " in texts[item.position][start:end]
    assert ranking.score_kind is ScoreKind.POINTWISE
    assert {place for window in ranking.trace.windows for place in window.positions} == set(range(10))


@pytest.mark.parametrize(
    ("text", "chunks", "is_left_out"),
    [
        ("A flea lives 900 years.", 10, False),
        (FLEA.replace("7", "900") + FILLER, 10, True),
        (LONG.replace("7", "900"), 10, True),
        (LONG.replace("7", "900"), 0, False),
    ],
)
def test_model_that_reads_little_of_a_part_is_left_out_of_a_cascade_and_the_reply_says_so(
    encoder: Encoder, text: str, chunks: int, is_left_out: bool
) -> None:
    wide, narrow = NumberRanker(1000), ShortSighted()
    wide.info = replace(wide.info, max_passage_tokens=100)

    async def call() -> Ranking:
        async with reranker_of(encoder, {"narrow": narrow, "wide": wide}) as reranker:
            options = RankOptions("narrow", strategy="cascade", preranker="wide", max_chunks_per_doc=chunks)
            return await reranker.rerank(QUERY, [("other", "It lives 800 years."), ("long", text)], options)

    ranking = asyncio.run(call())
    models = [window.model for window in ranking.trace.windows]
    if is_left_out:
        assert (doc_ids(ranking)[0], models, ranking.trace.model) == ("long", ["wide"], "wide")
        assert ranking.trace.model_warning == (
            "narrow reads 24 tokens of a passage and wide 100, so narrow was left out for these long documents"
        )
    else:
        assert (models, ranking.trace.model, ranking.trace.model_warning) == (["wide", "narrow"], "narrow", "")


@pytest.mark.parametrize("title", ["Fleas", "Fleas 🙂 of the world", ""])
@pytest.mark.parametrize("has_title", [False, True])
def test_span_is_of_the_text_as_it_was_sent_and_the_title_is_in_front_of_each_part(
    encoder: Encoder, title: str, has_title: bool
) -> None:
    ranker = ShortSighted()
    text = f"{title} {LONG}" if has_title else LONG

    async def call() -> Ranking:
        async with reranker_of(encoder, {"short": ranker}) as reranker:
            sent = [Passage("a", text, title=title), Passage("b", "none")]
            return await reranker.rerank(QUERY, sent, RankOptions(max_chunks_per_doc=10))

    start, end = spans(asyncio.run(call()))["a"] or (0, 0)
    assert FLEA in text[start:end]
    read = next(p.text for window in ranker.encoded for p in window.passages if p.doc_id == "a")
    assert read == (f"{title} {text[start:end]}" if title else text[start:end])


@pytest.mark.parametrize("text", ["", "\n" * 5000, "x" * 5000, "🙂 e\u0301 海" * 300])
@pytest.mark.parametrize("model", ["short", "pointwise"])
def test_unusual_texts_are_ranked_and_their_spans_are_slices(rank: Rank, model: str, text: str) -> None:
    ranking = rank([("a", text), ("b", "7")], model=model)
    assert sorted(doc_ids(ranking)) == ["a", "b"]
    for start, end in filter(None, spans(ranking).values()):
        assert 0 <= start < end <= len(text)


def test_no_more_of_a_text_is_read_than_its_chunks_can_hold(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def token_ends(text: str) -> Places:
        read.append(len(text))
        return np.array([match.end() for match in re.finditer(r"\S+", text)], dtype=np.int64)

    documents = tuple(Passage(str(place), FILLER * 10_000) for place in range(3))
    options = RankOptions(max_chunks_per_doc=3)
    request = RankJob(Query(QUERY), documents, (Step("m", Single(20)),), options)
    monkeypatch.setattr(encoder, "token_ends", token_ends)
    divided = finished(ChunkedDocuments.of(request, [ShortSighted().info], encoder))
    assert max(read) <= 3 * 24 * 8
    assert len(divided.chunks) == 3
    assert divided.unread == {"0", "1", "2"}


def test_part_has_a_vector_of_its_own_that_is_computed_once(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index holds a vector of the beginning of a document only."""
    monkeypatch.setattr(encoder, "vector_cache", VectorCache(10**6))
    of_document = np.ones(encoder.id.dimension, dtype=np.float32)
    document = Passage("a", LONG, 2.5, vector=of_document, vector_truncated=True)
    request = RankJob(Query(QUERY), (document,), (Step("m", Single(20)),), RankOptions(max_chunks_per_doc=10))
    (chunk,) = finished(ChunkedDocuments.of(request, [ShortSighted().info], encoder)).candidates
    (expected,) = encoder.encode_passages([chunk.text], "auto")
    np.testing.assert_allclose(np.array(chunk.vector), expected, atol=1e-2)
    assert (chunk.vector_truncated, chunk.vector_cached, chunk.score) == (False, False, 2.5)

    monkeypatch.setattr(encoder, "encode_passages", lambda texts, dtype: np.empty((0, encoder.id.dimension)))
    (again,) = finished(ChunkedDocuments.of(request, [ShortSighted().info], encoder)).candidates
    np.testing.assert_array_equal(np.array(again.vector), np.array(chunk.vector))
    assert again.vector_cached


def test_long_parts_are_chosen_by_their_words_and_not_encoded(encoder: Encoder) -> None:
    """A vector of many sentences says little, and encoding three of them takes long."""
    document = Passage("a", LONG * 5)
    request = RankJob(Query(QUERY), (document,), (Step("m", Single(20)),), RankOptions(max_chunks_per_doc=10))
    info = replace(ShortSighted().info, max_passage_tokens=120)
    (chunk,) = finished(ChunkedDocuments.of(request, [info], encoder)).candidates
    assert FLEA in chunk.text
    assert len(chunk.text) < len(document.text)
    assert chunk.vector is None


def test_of_the_parts_that_share_most_words_the_one_nearest_to_the_query_is_read(rank: Rank) -> None:
    """The words of the query decide only which parts are compared."""
    echo = "How long does a ship live, and how long does it float? "
    answer = "A flea survives a hundred days. "
    text = FILLER + echo + FILLER + answer + FILLER
    start, end = spans(rank([("long", text), ("short", "x")]))["long"] or (0, 0)
    assert answer.strip() in text[start:end]


INFO = RankerInfo("a", "a", "", "", 20, ScoreKind.WINDOW_LOG_PROB, max_passage_tokens=48)
WIDE = replace(INFO, max_passage_tokens=254)
NO_READER = replace(INFO, max_passage_tokens=0, reads_passages=False)
FITTED = replace(WIDE, relevance=(RelevanceCurve(intercept=-6.0, slopes={"cosine": 8.0}),))


@pytest.mark.parametrize(
    ("infos", "chunk_tokens", "kept"),
    [
        ([INFO], 48, "0"),
        ([WIDE, INFO], 254, "0"),
        ([INFO, WIDE], 48, "01"),
        ([WIDE, replace(INFO, max_passage_tokens=127)], 127, "01"),
        ([replace(WIDE, max_passage_tokens=512, score_kind=ScoreKind.POINTWISE)], 502, "0"),
        ([INFO, NO_READER], 48, "01"),
        ([NO_READER, INFO], 48, "01"),
        ([replace(INFO, max_passage_tokens=3)], 16, "0"),
        ([FITTED], 48, "0"),
        ([replace(FITTED, signals={"cosine": "", "sparse": ""})], 96, "0"),
        ([replace(WIDE, relevance=OWN_LOG_ODDS)], 254, "0"),
    ],
)
def test_part_is_as_long_as_every_model_of_the_request_reads_and_who_reads_too_little_is_left_out(
    infos: list[RankerInfo], chunk_tokens: int, kept: str
) -> None:
    steps = tuple(Step(str(place), Single(20)) for place in range(len(infos)))
    readers = Readers.of(RankJob(Query("q"), (), steps), infos, query_tokens=10)
    assert readers.chunk_tokens == chunk_tokens
    assert [step.model for step in readers.kept] == list(kept)


def test_model_that_alone_gives_relevance_is_not_left_out() -> None:
    steps = (Step("wide", Single(20)), Step("narrow", Single(20)))
    request = RankJob(Query("q"), (), steps, RankOptions(min_relevance=0.5))
    readers = Readers.of(request, [WIDE, INFO], query_tokens=10)
    assert (readers.kept, readers.chunk_tokens) == (steps, 48)


# --- limits ---


def test_chunks_of_all_candidates_count_against_the_limit_of_candidates() -> None:
    candidates = [pb.Candidate(doc_id=str(place), text="x") for place in range(4)]
    limits = Limits(max_candidates=10)

    def chunks(most: int) -> int:
        request = pb.RerankRequest(query="q", candidates=candidates, max_chunks_per_doc=most)
        return rerank_request(request).checked(limits).options.max_chunks_per_doc

    assert [chunks(most) for most in (0, 1, 2)] == [0, 1, 2]
    for most in (3, 2**31 - 1):
        with pytest.raises(InvalidRequest, match=f"4 candidates .* {most} chunks .* limit of 10; use at most 2 chunks"):
            chunks(most)
    with pytest.raises(InvalidRequest, match="max_chunks_per_doc: -1 is negative"):
        chunks(-1)
    search = pb.SearchRequest(query="q", depth=6, max_chunks_per_doc=2)
    with pytest.raises(InvalidRequest, match=r"6 candidates .* use none, or send fewer candidates"):
        search_request(search).checked(limits)
    search.depth = 5
    assert search_request(search).checked(limits).options.max_chunks_per_doc == 2
