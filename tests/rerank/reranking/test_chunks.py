"""Long documents by their chunks: which chunk is read, MaxP, spans of the text as it was sent, limits, every port."""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rerank import InvalidRequest, Query, Ranking, RankOptions
from rerank.config import Limits
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single
from rerank.protobuf.messages import rerank_request, search_request
from rerank.rankers.base import RankerInfo
from rerank.reranking.chunks import ChunkedDocuments, chunk_tokens
from rerank.types import Passage, ScoreKind
from rerank.v1 import rerank_pb2 as pb
from tests.fakes import NumberRanker
from tests.serving import rank_once
from tests.slices import finished

#: Some 20 tokens without a number, which tells the fake ranker nothing.
FILLER = "The history of ships is long and their names are many, as are those of the seas and of the winds. "
QUERY = "how long does a flea live"
FLEA = "A flea lives 7 years. "
LONG = FILLER * 3 + FLEA + FILLER * 3


def short_sighted(score_kind: ScoreKind = ScoreKind.WINDOW_LOG_PROB, **info: Any) -> NumberRanker:
    """Reads 24 tokens of a passage: the number in its text is its score."""
    return NumberRanker(1000, max_passage_tokens=24, score_kind=score_kind, **info)


Rank = Callable[..., Ranking]


@pytest.fixture
def rank() -> Rank:
    """Ranks candidates by "short" or "pointwise"."""

    def run(candidates: Sequence[Any], chunks: int = 10, **options: Any) -> Ranking:
        rankers = {"short": short_sighted(), "pointwise": short_sighted(ScoreKind.POINTWISE)}
        return rank_once(rankers, QUERY, candidates, RankOptions(max_chunks_per_doc=chunks, **options))

    return run


def doc_ids(ranking: Ranking) -> list[str]:
    return [item.passage.doc_id for item in ranking.ranked]


def spans(ranking: Ranking) -> dict[str, tuple[int, int] | None]:
    return {item.passage.doc_id: item.span for item in ranking.ranked}


def test_document_is_ranked_by_the_part_that_shares_words_with_the_query(rank):
    ranking = rank([("short", "It lives 3 years."), ("long", LONG), ("ships", FILLER * 6)])
    assert doc_ids(ranking) == ["long", "short", "ships"]
    start, end = spans(ranking)["long"]
    assert FLEA in LONG[start:end]
    assert len(LONG[start:end]) < len(LONG) / 3
    assert spans(ranking)["short"] is None
    assert spans(ranking)["ships"] == (0, len(FILLER) + len("The")), "the first of equals: 24 tokens"
    assert ranking.ranked[0].passage.text == LONG
    assert not ranking.trace.truncated_doc_ids


@pytest.mark.parametrize("chunks", [0, 1])
def test_no_document_is_divided_unless_the_request_asks_for_it(rank, chunks):
    ranking = rank([("a", FILLER * 6), ("long", LONG)], chunks)
    assert set(spans(ranking).values()) == {None}


def test_what_follows_the_last_part_is_unread_and_reported(rank):
    ranking = rank([("long", LONG), ("short", "It lives 3 years.")], 2)
    assert doc_ids(ranking) == ["short", "long"], "the flea is in the fourth chunk"
    assert ranking.trace.truncated_doc_ids == ("long",)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("top_n", [0, 1, 3, 50])
def test_model_that_reads_passages_alone_gives_a_document_the_place_of_its_best_part(rank, ordered, top_n):
    """MaxP by a slow reference: the largest number in each document."""
    numbers = random.Random(top_n).sample(range(1, 1000), 40)
    documents = [numbers[place : place + 4] for place in range(0, 40, 4)]
    texts = ["".join(f"{FILLER}This is {number}. " for number in document) for document in documents]
    best = sorted(range(10), key=lambda place: -max(documents[place]))[: top_n or None]
    options = {"model": "pointwise", "top_n": top_n, "ordered": ordered, "strategy": "single", "window_size": 200}
    ranking = rank(list(enumerate(texts)), 30, **options)
    assert [item.position for item in ranking.ranked] == best
    assert [item.score for item in ranking.ranked] == [max(documents[place]) for place in best]
    for item in ranking.ranked:
        start, end = item.span or (0, 0)
        assert f" {max(documents[item.position])}. " in texts[item.position][start:end]
    assert ranking.score_kind is ScoreKind.POINTWISE
    assert {place for window in ranking.trace.windows for place in window.positions} == set(range(10))


@pytest.mark.parametrize("title", ["Fleas", "Fleas 🙂 of the world", ""])
@pytest.mark.parametrize("has_title", [False, True])
def test_span_is_of_the_text_as_it_was_sent_and_the_title_is_in_front_of_each_part(title, has_title):
    ranker = short_sighted()
    text = f"{title} {LONG}" if has_title else LONG
    sent = [Passage("a", text, title=title), Passage("b", "none")]
    ranking = rank_once({"short": ranker}, QUERY, sent, RankOptions(max_chunks_per_doc=10))
    start, end = spans(ranking)["a"]
    assert "A flea" in text[start:end]
    read = next(p.text for window in ranker.encoded for p in window.passages if p.doc_id == "a")
    assert read == (f"{title} {text[start:end]}" if title else text[start:end])


@pytest.mark.parametrize("text", ["", "\n" * 5000, "x" * 5000, "🙂 e\u0301 海" * 300])
@pytest.mark.parametrize("model", ["short", "pointwise"])
def test_unusual_texts_are_ranked_and_their_spans_are_slices(rank, model, text):
    ranking = rank([("a", text), ("b", "7")], model=model)
    assert sorted(doc_ids(ranking)) == ["a", "b"]
    for start, end in filter(None, spans(ranking).values()):
        assert 0 <= start < end <= len(text)


def test_no_more_of_a_text_is_read_than_its_chunks_can_hold(encoder, monkeypatch):
    read: list[int] = []

    def token_ends(text: str) -> npt.NDArray[np.int64]:
        read.append(len(text))
        return words(text)

    documents = tuple(Passage(str(place), FILLER * 10_000) for place in range(3))
    options = RankOptions(max_chunks_per_doc=3)
    request = Request(Query(QUERY), documents, (RankStage("m", Single(20)),), options)
    monkeypatch.setattr(encoder, "token_ends", token_ends)
    divided = finished(ChunkedDocuments.of(request, [short_sighted().info], encoder))
    assert sum(read) < 3 * 2 * 4096, "a slice of each document is enough"
    assert len(divided.chunks) == 3
    assert divided.unread == {"0", "1", "2"}


def test_part_has_no_vector_of_the_document(encoder):
    """An index holds a vector of the beginning of a document only."""
    of_document = np.ones(encoder.id.dimension, dtype=np.float32)
    document = Passage("a", LONG, 2.5, vector=of_document, vector_truncated=True)
    request = Request(Query(QUERY), (document,), (RankStage("m", Single(20)),), RankOptions(max_chunks_per_doc=10))
    (chunk,) = finished(ChunkedDocuments.of(request, [short_sighted().info], encoder)).candidates
    assert chunk.text in LONG
    assert (chunk.vector, chunk.vector_truncated, chunk.score) == (None, False, 2.5)


def words(text: str) -> npt.NDArray[np.int64]:
    return np.array([match.end() for match in re.finditer(r"\S+", text)], dtype=np.int64)


@pytest.mark.parametrize("length", [1, 24, 25, 42, 43, 500])
@pytest.mark.parametrize("most", [2, 3, 1000])
def test_parts_cover_the_text_with_overlap_and_none_is_longer_than_the_model_reads(encoder, monkeypatch, length, most):
    monkeypatch.setattr(encoder, "token_ends", words)
    text = " ".join(f"w{place}" for place in range(length))
    options = RankOptions(max_chunks_per_doc=most)
    request = Request(Query("q"), (Passage("a", text),), (RankStage("m", Single(20)),), options)
    info = replace(short_sighted(ScoreKind.POINTWISE).info, max_passage_tokens=25)
    divided = finished(ChunkedDocuments.of(request, [info], encoder))
    parts = [chunk.candidate.text.split() for chunk in divided.chunks]
    assert all(len(part) <= 24 for part in parts)
    assert len(parts) <= most
    assert bool(divided.unread) is (parts[-1][-1] != f"w{length - 1}")
    assert bool(divided.unread) is (length > 24 + (most - 1) * 18)
    for part, following in pairwise(parts):
        assert following[: len(part) - 18] == part[18:]


INFO = RankerInfo("a", "a", "", "", 20, ScoreKind.WINDOW_LOG_PROB, max_passage_tokens=48)
NO_READER = replace(INFO, max_passage_tokens=0, reorders=False)


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ([INFO], 48),
        ([replace(INFO, max_passage_tokens=254), INFO], 48),
        ([replace(INFO, score_kind=ScoreKind.POINTWISE)], 38),
        ([NO_READER, INFO], 48),
        ([replace(INFO, max_passage_tokens=3)], 16),
        ([replace(INFO, max_passage_tokens=512)], 96),
        ([replace(INFO, max_passage_tokens=512, score_kind=ScoreKind.POINTWISE)], 502),
        ([replace(INFO, max_passage_tokens=512, score_kind=ScoreKind.POINTWISE)] * 2, 96),
        ([NO_READER], math.inf),
    ],
)
def test_part_is_as_long_as_every_model_of_the_request_reads(infos, expected):
    assert chunk_tokens(infos, query_tokens=10) == expected


# --- limits ---


def test_chunks_of_all_candidates_count_against_the_limit_of_candidates():
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
