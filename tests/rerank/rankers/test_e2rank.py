"""E2Rank: which passages and words make the vector, whose vectors count, and one set of weights.

tests/parity/test_e2rank.py compares the cosines with the reference.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rerank.config import E2RankModel, EncoderConfig
from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker
from rerank.rankers.e2rank import E2RankRanker
from rerank.reranking.load_models import E2RANK_END_TOKEN, load_ranker, with_path
from rerank.types import Matrix, Passage, Query, Window, WindowRanking
from tests.fakes import ranking_of
from tests.small_encoder import write_qwen_model

TEXTS = [f"passage {number} about number {number * 7}" for number in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_model(tmp_path_factory.mktemp("models") / "e2rank")


@pytest.fixture(scope="module")
def e2rank(folder: Path) -> Encoder:
    settings = EncoderConfig(name=str(folder), pooling="lasttoken", end_token=E2RANK_END_TOKEN)
    return Encoder(settings, "cpu", vector_cache_bytes=10**6)


def loaded(encoder: Encoder, **settings: object) -> E2RankRanker:
    model = E2RankModel(name="e2rank", ranker="e2rank", precision="float32", **settings)  # type: ignore[arg-type]
    ranker = load_ranker(with_path(model, encoder), encoder, "cpu")
    assert isinstance(ranker, E2RankRanker)
    return ranker


def ranked(ranker: Ranker, texts: list[str], query: Query = Query("what is 7")) -> WindowRanking:  # noqa: B008
    return ranking_of(ranker, query, texts)


def test_only_the_first_passages_make_the_vector_and_all_are_scored(e2rank):
    ranker = E2RankRanker(e2rank, True, "e2rank", "Order these:", 3, "float32")
    all_of_them, others = ranked(ranker, TEXTS), ranked(ranker, [*TEXTS[:3], "another one"])
    np.testing.assert_allclose(all_of_them.query_vector, others.query_vector, atol=1e-6)
    assert all_of_them.scores[:3] == pytest.approx(others.scores[:3], abs=1e-6)
    assert len(all_of_them.scores) == len(TEXTS)
    expected = e2rank.encode_passages(TEXTS) @ all_of_them.query_vector
    assert all_of_them.scores == pytest.approx(expected.tolist(), abs=1e-6)
    swapped = ranked(ranker, [TEXTS[3], *TEXTS[1:3], TEXTS[0]])
    assert not np.allclose(all_of_them.query_vector, swapped.query_vector, atol=1e-3)


def test_instruction_of_a_request_takes_the_place_of_the_models(e2rank):
    ranker, other = loaded(e2rank), loaded(e2rank, instruction="Find the sevens:")
    of_request = ranked(ranker, TEXTS, Query("what is 7", instruction="Find the sevens:"))
    np.testing.assert_allclose(of_request.query_vector, ranked(other, TEXTS).query_vector, atol=1e-6)
    assert not np.allclose(of_request.query_vector, ranked(ranker, TEXTS).query_vector, atol=1e-3)


def with_vectors(vectors: Matrix) -> list[Passage]:
    return [Passage(text, text, vector=vector) for text, vector in zip(TEXTS, vectors, strict=True)]


def test_vectors_of_another_encoder_are_not_read(e2rank, encoder, folder):
    ranker, expected = loaded(encoder, path=folder), ranked(loaded(e2rank), TEXTS)
    found = ranking_of(ranker, "what is 7", with_vectors(encoder.encode_passages(TEXTS)))
    assert found.scores == pytest.approx(expected.scores, abs=1e-6)
    assert not ranker.info.needs_vectors


def test_vectors_of_the_index_are_read(e2rank):
    found = ranking_of(loaded(e2rank), "what is 7", with_vectors(np.eye(32, dtype=np.float32)[: len(TEXTS)]))
    assert found.scores == pytest.approx(found.query_vector[: len(TEXTS)].tolist(), abs=1e-6)


def test_long_texts_are_truncated_and_named(e2rank):
    ranker, long = loaded(e2rank), "word " * 5000
    prepared = ranker.prepare(replace(Query(long)), [Passage("long", long), Passage("short", "a")])
    assert (prepared.query.is_truncated, prepared.truncated_doc_ids) == (True, ("long",))
    window = ranker.encode(Window(prepared.query, prepared.passages))
    assert window.tokens <= e2rank.id.max_tokens
    assert window.truncated == (0,)


def test_encoder_that_pools_other_states_is_refused(encoder):
    with pytest.raises(CheckpointError, match=r"reads the state of the last token, and encoder .* pools by mean; set"):
        loaded(encoder)


def test_encoder_reads_the_text_of_the_prompt_where_the_profile_says_so(e2rank):
    """E2Rank's own code (src/eval.py) cuts documents at words and joins white space before it encodes them."""
    style = {"max_words": 3, "encoder_text": "shown"}
    texts = ["one  two\nthree four", "one two three", " "]
    found = ranked(loaded(e2rank, prompt=style), texts)
    expected = ranked(loaded(e2rank, prompt={"max_words": 3}), ["one two three", "one two three", ""])
    assert found.scores == pytest.approx(expected.scores, abs=1e-6)
    assert found.scores[0] == pytest.approx(found.scores[1], abs=1e-6)


def test_vector_of_the_index_counts_for_texts_that_are_encoded_as_they_are(e2rank):
    ranker, stored = loaded(e2rank, prompt={"max_words": 3, "encoder_text": "shown"}), np.eye(32, dtype=np.float32)[0]
    passages = [Passage("cut", "one two three four", vector=stored), Passage("same", "one two", vector=stored)]
    prepared = ranker.prepare(Query("q"), passages)
    assert prepared.truncated_doc_ids == ("cut",)
    assert np.array_equal(prepared.passages[1].vector, stored)
    assert not np.array_equal(prepared.passages[0].vector, stored)
