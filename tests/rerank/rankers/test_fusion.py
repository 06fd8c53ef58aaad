"""Fusion: the scores are the signals' and depend on nothing but the request; texts run in batches."""

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rerank.config import FusionModel
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import rank_windows
from rerank.rankers.fused_scores import CheapSignals, Signals, cheap_scores, list_scores, weight_by_list
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.lexical import bundled_word_table, known_words, refitted, word_parts
from rerank.types import FirstStageKind, Passage, Query, Window
from rerank.util.words import stems
from tests.conftest import PASSAGES
from tests.fakes import prepared_window

QUERY = Query("how long does a flea live")
TEXTS = [f"{title} {text}" for title, text in PASSAGES.values()]
SETTINGS = FusionModel(name="fusion", ranker="fusion")


def fusion(encoder: Encoder, sparse_encoder: SparseEncoder | None, **settings: Any) -> FusionRanker:
    return FusionRanker(FusionModel(name="fusion", ranker="fusion", **settings), encoder, sparse_encoder)


def window(ranker: FusionRanker, texts: list[str], first_stage: list[float] | None = None) -> Window:
    return prepared_window(
        ranker, QUERY, texts, first_stage=tuple(first_stage or ()), weight=0.3 if first_stage else 0.0
    )


def signals(of_list: Window, encoder: Encoder) -> Signals:
    """The signals of a list, computed text by text."""
    texts = [stems(passage.text) for passage in of_list.passages]
    first_stage = np.array(of_list.first_stage or [0.0] * len(texts))
    cheap = CheapSignals(
        first_stage,
        refitted(word_parts(QUERY, texts), first_stage),
        np.array([passage.sparse_score for passage in of_list.passages]),
        known_words(texts, bundled_word_table()),
    )
    vectors = [encoder.encode_passages([passage.text], "auto")[0] for passage in of_list.passages]
    return Signals(cheap, np.stack(vectors), encoder.encode_queries([QUERY.text])[0])


@pytest.mark.parametrize("weight", [0.3, *FirstStageKind])
def test_scores_are_the_fusion_of_the_signals(encoder, sparse_encoder, weight):
    ranker = fusion(encoder, sparse_encoder)
    draw = np.random.default_rng(3)
    for n in (1, 2, 5, len(TEXTS)):
        of_list = replace(window(ranker, TEXTS[:n], draw.normal(size=n).tolist()), weight=weight)
        (ranking,) = rank_windows(ranker, [of_list])
        found = signals(of_list, encoder)
        expected, of_weight = list_scores(SETTINGS, weight, found.cheap, np.arange(n), found)
        # in bfloat16, a vector depends on the batch of its text
        assert ranking.scores == pytest.approx(expected.tolist(), abs=0.05, rel=0.02), n
        assert ranking.weight == pytest.approx(of_weight, abs=0.01)


def test_cosine_is_read_of_the_passages_that_the_other_signals_put_first(encoder, sparse_encoder):
    ranker = fusion(encoder, sparse_encoder, cosine_depth=5)
    first_stage = np.random.default_rng(3).normal(size=len(TEXTS)).tolist()
    of_list = replace(window(ranker, TEXTS, first_stage), weight=FirstStageKind.AUTO)
    (ranking,) = rank_windows(ranker, [of_list])
    cheap = signals(of_list, encoder).cheap
    scores = cheap_scores(SETTINGS, weight_by_list(SETTINGS, FirstStageKind.AUTO, cheap), cheap)
    assert set(np.flatnonzero(~np.isnan(ranking.cosines))) == set(np.argsort(-scores)[:5])


def test_list_in_a_language_that_the_models_do_not_read_keeps_its_first_stage(encoder, sparse_encoder):
    """No word of the query is in a text, so that the first stage alone counts; a user's own encoder may read it."""
    texts = ["Ноты пишут на бумаге.", "Пустыни сухи.", "Киты живут 20 лет.", "Блохи живут около года."]
    found = []
    for name, own in ((DEFAULT_ENCODER, encoder), ("multilingual", copy(encoder))):
        own.id = replace(own.id, name=name)
        ranker = fusion(own, sparse_encoder)
        of_list = replace(window(ranker, texts, [4.0, 3.0, 2.0, 1.0]), weight=FirstStageKind.AUTO)
        found += rank_windows(ranker, [of_list])
    bundled, of_user = found
    assert bundled.scores == pytest.approx([1.25 * score / 5**0.5 for score in (3, 1, -1, -3)])
    assert bundled.weight == of_user.weight == 1.25
    assert of_user.scores != pytest.approx(bundled.scores, abs=0.1)
    assert bundled.warning.startswith("the model knows 0% of the words of these texts")
    assert not of_user.warning


def test_order_is_the_same_for_texts_of_earlier_requests(encoder, sparse_encoder):
    caching = Encoder(device="cpu", vector_cache_bytes=1_000_000)
    ranker = fusion(caching, sparse_encoder, cosine_depth=4)
    of_list = window(ranker, TEXTS)
    (cold,) = rank_windows(ranker, [of_list])
    for text in TEXTS:  # a later request with a greater depth leaves all vectors
        caching.vector_cache.put(text, caching.encode_passages([text])[0], *caching.token_counts([text]), False)
    warm_list = replace(of_list, passages=tuple(map(ranker.with_cached, of_list.passages)))
    assert all(passage.cached_tokens for passage in warm_list.passages)
    (warm,) = rank_windows(ranker, [warm_list])
    assert warm.permutation == cold.permutation
    assert np.isnan(warm.cosines).sum() == len(TEXTS) - 4


def test_sparse_signal_is_the_dot_product_with_the_query_at_unit_length(encoder, sparse_encoder):
    ranker = fusion(encoder, sparse_encoder)
    query, passages = sparse_encoder.encode_query(QUERY.text), sparse_encoder.encode_passages(TEXTS, "float32")
    weights = dict(zip(query.terms.tolist(), query.weights.tolist(), strict=True))
    length = sum(weight * weight for weight in weights.values()) ** 0.5
    slow = [
        sum(weights.get(term, 0.0) * weight for term, weight in zip(p.terms.tolist(), p.weights.tolist(), strict=True))
        for p in passages
    ]
    scores = [passage.sparse_score for passage in window(ranker, TEXTS).passages]
    assert scores == pytest.approx([weight / length for weight in slow], rel=0.05, abs=0.02)


def test_slices_encode_the_query_once_and_score_as_one(encoder, sparse_encoder):
    ranker = fusion(encoder, sparse_encoder)
    passages = [Passage(f"d{place}", text) for place, text in enumerate(TEXTS)]
    whole = ranker.prepare(QUERY, passages)
    first = ranker.prepare(QUERY, passages[:3])
    second = ranker.prepare(first.query, passages[3:])
    assert second.query is first.query
    scores = [passage.sparse_score for passage in (*first.passages, *second.passages)]
    assert scores == pytest.approx([passage.sparse_score for passage in whole.passages])


def test_all_passages_of_an_index_have_a_cosine(encoder, sparse_encoder):
    ranker = fusion(encoder, sparse_encoder, cosine_depth=2)
    of_list = window(ranker, TEXTS)
    vectors = encoder.encode_passages(TEXTS)
    passages = (replace(passage, vector=vector) for passage, vector in zip(of_list.passages, vectors, strict=True))
    (ranking,) = rank_windows(ranker, [replace(of_list, passages=tuple(passages))])
    assert not np.isnan(ranking.cosines).any()


def test_texts_are_encoded_in_batches_and_counted_as_far_as_they_are_read(encoder, sparse_encoder):
    """A request of 20 x 198,000 characters was counted whole, and the requests after it were refused."""
    ranker = fusion(encoder, sparse_encoder)
    encoded = ranker.encode(window(ranker, [f"{number} " + ". " * 99_000 for number in range(9)]))
    assert encoded.tokens == sum(batch.tokens for batch in encoded.parts) == 9 * encoder.max_text_tokens
    assert [len(batch.beginnings) for batch in encoded.parts] == [1] * 9


def test_query_longer_than_an_encoder_reads_is_truncated(encoder, sparse_encoder):
    """MiniLM reads 254 tokens, splade-tiny 510."""
    ranker = fusion(encoder, sparse_encoder)
    fits, longer, longest = (ranker.prepare(Query("flea " * n), []).query for n in (254, 400, 9000))
    assert [query.is_truncated for query in (fits, longer, longest)] == [False, True, True]
    np.testing.assert_allclose(np.stack([longer.vector, longest.vector]), np.stack([fits.vector] * 2), atol=1e-5)
    assert [sparse_encoder.reads_whole_query("flea " * n) for n in (510, 511, 9000)] == [True, False, False]
