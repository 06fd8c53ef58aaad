"""FIRST: scores, adapters, truncation, and checkpoints that are rejected."""

from pathlib import Path

import pytest
import torch

from rerank.prompting.identifiers import IdentifierKind
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker
from rerank.types import ScoreKind, Window
from tests.causal_lms import write_causal_lm
from tests.fakes import check_overtaking, prepared_window, window_of
from tests.small_tokenizers import byte_level, byte_level_numbers

TEXTS = ["a flea", "the moon and the tides", "bread", "a violin", "sand"]


def window(*texts: str) -> Window:
    return window_of("what jumps", texts)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "llama", byte_level())


@pytest.fixture(scope="module")
def ranker(lm: Path) -> FirstRanker:
    return FirstRanker(lm, "first", device="cpu")


def test_scores_are_log_probabilities_over_the_window(ranker):
    for n in (1, 2, 5):
        scores = rank_windows(ranker, [window(*TEXTS[:n])])[0].scores
        assert torch.tensor(scores).exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert ranker.info.score_kind is ScoreKind.WINDOW_LOG_PROB


def test_prompt_ends_with_the_opening_bracket(ranker):
    """The identifier is the token after it."""
    (token_ids,) = ranker.encode(window(*TEXTS)).prompts
    assert token_ids[-1] == ranker.identifiers.bracket_id
    assert [*token_ids[:-1]] == [*ranker.renderer.prompt(window(*TEXTS), ranker.identifiers.texts).token_ids]


def test_numbers_that_are_single_tokens_allow_windows_of_hundreds(tmp_path):
    checkpoint = write_causal_lm(tmp_path / "lm", "llama", byte_level_numbers())
    wide = FirstRanker(checkpoint, "first", IdentifierKind.NUMBERS, device="cpu")
    assert wide.info.max_window_size == 999
    assert len(rank_windows(wide, [window(*["x"] * 100)])[0].scores) == 100


def test_truncated_passages_are_reported_by_their_place_in_the_window(ranker):
    encoded = ranker.encode(window("short", "word " * 3000, "tiny", "other " * 3000))
    assert encoded.truncated == (1, 3)
    assert encoded.tokens == len(encoded.prompts[0]) <= 4096


def test_prepared_passages_get_the_scores_of_unprepared_ones(ranker):
    texts = [*TEXTS, "word " * 3000, "ends with a stop."]
    ready, raw = prepared_window(ranker, "what jumps", texts), window(*(text.strip() for text in texts))
    assert rank_windows(ranker, [ready]) == rank_windows(ranker, [raw])
    assert ranker.encode(ready).tokens <= 4096


def test_window_that_overtakes_another_one_changes_no_score(lm):
    ranker = FirstRanker(lm, "first", device="cpu")
    check_overtaking(ranker, [window(*TEXTS), window(*TEXTS[::-1])], [window(*TEXTS[:2])])
