"""PE-Rank: zero-initialised order equals cosine order, batches do not change scores, wrong checkpoints are rejected."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rerank.errors import CheckpointError, InvalidRequest
from rerank.models.encoder import Encoder
from rerank.prompting.style import PromptStyle
from rerank.rankers.base import rank_windows
from rerank.rankers.lexical import refitted, word_parts
from rerank.rankers.pe_rank import PERankRanker
from rerank.retrieval.hybrid import z_scores
from rerank.types import Matrix, Passage, Query, Window
from rerank.util.words import stems
from tests.fakes import ranking_of
from tests.pe_checkpoints import change_config, write_perturbed

FLEAS = Query("how long does a flea live")
PASSAGES = [Passage("a", "Fleas live for a year."), Passage("b", "Bread rises."), Passage("c", "A long flea.")]


def unit_rows(n: int, seed: int) -> Matrix:
    rows = np.random.default_rng(seed).normal(size=(n, 384)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_window(n: int, seed: int, text: str = "a query") -> Window:
    query, *passages = unit_rows(n + 1, seed)
    return Window(Query(text, vector=query), tuple(Passage(f"d{i}", "", vector=row) for i, row in enumerate(passages)))


def cosine_order(window: Window) -> tuple[int, ...]:
    """Best first, in float64, equal cosines in the order of the window."""
    query = window.query.vector.astype(np.float64)
    cosines = [p.vector.astype(np.float64) @ query for p in window.passages if p.vector is not None]
    return tuple(np.argsort(-np.array(cosines), kind="stable").tolist())


@pytest.fixture(scope="module")
def ranker(checkpoint: Path, encoder: Encoder) -> PERankRanker:
    return PERankRanker(checkpoint, encoder, device="cpu")


@pytest.fixture(scope="module")
def perturbed(checkpoint: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PERankRanker:
    """A ranker with noise on all weights, so that each of them has an effect, as after training."""
    folder = write_perturbed(tmp_path_factory.mktemp("perturbed") / "perturbed", checkpoint)
    return PERankRanker(folder, encoder, device="cpu")


@pytest.mark.parametrize("n", [1, 2, 20, 100])
def test_zero_init_order_equals_cosine_order(ranker, n):
    for seed in range(8):
        window = random_window(n, seed)
        assert rank_windows(ranker, [window])[0].permutation == cosine_order(window)


@pytest.mark.usefixtures("two_threads")  # kernels that split rows between threads round them differently
def test_copies_of_a_passage_tie_wherever_they_stand(perturbed):
    three = random_window(3, seed=9)
    for n in range(4, 60, 11):
        (ranking,) = rank_windows(
            perturbed, [replace(three, passages=tuple(three.passages[place % 3] for place in range(n)))]
        )
        assert len(set(ranking.scores)) == 3


def test_scores_do_not_depend_on_the_batch(perturbed):
    windows = [random_window(n, seed=n, text="words " * n) for n in (1, 20, 5, 64, 20)]
    for window, batched in zip(windows, rank_windows(perturbed, windows), strict=True):
        np.testing.assert_allclose(rank_windows(perturbed, [window])[0].scores, batched.scores, atol=1e-4)


def test_the_model_reads_the_order_and_the_text(perturbed):
    """Otherwise the tests above would also pass for a model that ignores its input."""
    window = random_window(20, seed=1)
    reversed_window = Window(window.query, window.passages[::-1])
    other_text = random_window(20, seed=1, text="something else entirely")
    scores = np.array(rank_windows(perturbed, [window])[0].scores)
    assert np.abs(scores - rank_windows(perturbed, [reversed_window])[0].scores[::-1]).max() > 1e-3
    assert np.abs(scores - rank_windows(perturbed, [other_text])[0].scores).max() > 1e-3


def test_prepare_reports_truncated_passages(ranker, encoder):
    long = "word " * (encoder.id.max_tokens + 1)
    stored = Passage("stored", "…", vector=unit_rows(1, seed=1)[0], vector_truncated=True)
    prepared = ranker.prepare(Query("q"), [Passage("a", long), Passage("b", "short"), stored])
    assert prepared.truncated_doc_ids == ("a", "stored")


def test_query_longer_than_the_model_reads_is_truncated(ranker, encoder):
    limit = encoder.max_query_tokens
    fits, longer, longest = (ranker.prepare(Query("a " * n), []).query for n in (limit, limit + 1, 3 * limit))
    assert [query.is_truncated for query in (fits, longer, longest)] == [False, True, True]
    assert len(longest.text.split()) == encoder.id.max_tokens
    np.testing.assert_allclose(longest.vector, fits.vector, atol=1e-5)
    instructed = Query("a", instruction="a " * encoder.id.max_tokens)
    with pytest.raises(InvalidRequest, match=rf"is {encoder.id.max_tokens} tokens long, .* at most 256 are read"):
        ranker.prepare(instructed, [])


@pytest.mark.parametrize(("instructions", "reads"), [(None, False), (0, False), (3, True)])
def test_instruction_is_read_by_a_model_that_was_trained_with_some(checkpoint, encoder, tmp_path, instructions, reads):
    """Also the preranker of a cascade whose model reads one does not see it."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    if instructions is not None:
        (folder / "rerank.json").write_text(json.dumps({"instructions": instructions}))
    ranker = PERankRanker(folder, encoder, "cpu")
    plain, instructed = (
        ranker.encode(Window(query, ())) for query in (Query("q"), Query("q", instruction="prefer tides"))
    )
    assert ranker.info.reads_instruction is reads
    assert (plain.prompts != instructed.prompts) is reads
    assert ranker.info.template_sha256 == PERankRanker(checkpoint, encoder, "cpu").info.template_sha256


def test_checkpoint_for_an_encoder_of_another_width_is_rejected(checkpoint, encoder, tmp_path):
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    change_config(copy, hidden_size=192)
    with pytest.raises(CheckpointError, match="token embeddings of width 384 do not fit hidden size 192"):
        PERankRanker(copy, encoder, device="cpu")


def test_words_count_next_to_scores_but_not_with_dynamic_decoding(checkpoint, encoder):
    found = {}
    for name, decoding, weight in (("plain", "one_step", 0.0), ("words", "one_step", 2.0), ("dynamic", "dynamic", 2.0)):
        ranker = PERankRanker(checkpoint, encoder, "cpu", decoding, lexical_weight=weight)  # type: ignore[arg-type]
        found[name] = ranking_of(ranker, FLEAS, map(ranker.with_cached, PASSAGES))
    parts = word_parts(FLEAS, [stems(passage.text) for passage in PASSAGES])
    words = z_scores(refitted(parts, found["words"].scores))
    assert found["words"].lexical == pytest.approx((2 * words).tolist())
    assert found["words"].scores == found["plain"].scores
    assert not found["plain"].lexical
    assert not found["dynamic"].lexical


@pytest.mark.parametrize(
    ("first_stage", "weight"),
    [
        ((3.0, 0.0, 1.0), 0.25),  # a first stage of words
        ((3.0, 0.0, 1.0), 0.0),  # it does not count
        ((0.0, 9.0, 0.0), 0.25),  # it is against the words: they count no more than wholly
        ((), 0.0),
    ],
)
def test_words_count_as_far_as_a_first_stage_that_counts_does_not_say_them(checkpoint, encoder, first_stage, weight):
    ranker = PERankRanker(checkpoint, encoder, "cpu", lexical_weight=2.0)
    found = ranking_of(ranker, FLEAS, PASSAGES, first_stage=first_stage, weight=weight)
    parts = word_parts(FLEAS, [stems(passage.text) for passage in PASSAGES])
    shared = 0.0
    if weight:
        shared = max(float(np.corrcoef(first_stage, refitted(parts, first_stage))[0, 1]), 0.0)
    assert (shared > 0.5) == (first_stage[:1] == (3.0,) and weight > 0)
    expected = 2 * (1 - shared) * z_scores(refitted(parts, found.scores))
    assert found.lexical == pytest.approx(expected.tolist(), abs=1e-9)


def test_encoder_reads_as_many_tokens_as_the_profile_says(checkpoint, encoder):
    """PE-Rank's own code reads 512 tokens, whatever the encoder's folder says."""
    limited = PERankRanker(checkpoint, encoder, "cpu", style=PromptStyle(encoder_tokens=16))
    long, cut = "flea " * 40, "flea " * 14  # and two special tokens
    prepared = limited.prepare(Query("q"), [Passage("long", long), Passage("cut", cut), Passage("short", "a")])
    assert prepared.truncated_doc_ids == ("long",)
    vectors = [passage.vector for passage in prepared.passages]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    np.testing.assert_allclose(vectors[1], encoder.encode_passages([cut])[0], atol=1e-6)
    assert limited.info.max_passage_tokens == 14


def test_vector_of_more_text_than_the_profile_reads_is_not_taken(checkpoint, encoder):
    limited = PERankRanker(checkpoint, encoder, "cpu", style=PromptStyle(encoder_tokens=16))
    stored = unit_rows(2, seed=1)
    passages = [Passage("long", "flea " * 40, vector=stored[0]), Passage("short", "flea", vector=stored[1])]
    prepared = limited.prepare(Query("flea " * 40, vector=stored[0]), passages)
    assert not np.array_equal(prepared.passages[0].vector, stored[0])
    assert np.array_equal(prepared.passages[1].vector, stored[1])
    assert not np.array_equal(prepared.query.vector, stored[0])
    assert prepared.query.is_truncated
