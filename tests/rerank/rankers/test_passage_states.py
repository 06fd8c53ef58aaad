"""States of passages that query likelihood keeps: the same scores, fewer tokens, and no hit where a token differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rerank.rankers.base import rank_windows
from rerank.rankers.query_likelihood import QueryLikelihoodRanker
from rerank.types import Passage, Query, Window
from tests.causal_lms import CONFIGS, write_causal_lm
from tests.rerank.rankers.test_query_likelihood import TEMPLATE, make_window
from tests.small_tokenizers import byte_level, metaspace

ENOUGH_BYTES = 10**8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm"), "llama", byte_level())


@pytest.fixture(scope="module")
def forgetful(checkpoint: Path) -> QueryLikelihoodRanker:
    return QueryLikelihoodRanker(checkpoint, device="cpu")


@pytest.fixture
def ranker(checkpoint: Path) -> QueryLikelihoodRanker:
    return QueryLikelihoodRanker(checkpoint, device="cpu", state_bytes=ENOUGH_BYTES)


@pytest.mark.parametrize("query", ["w", "which passage", "which passage has the answer to a longer question"])
def test_scores_are_those_without_a_cache(
    forgetful: QueryLikelihoodRanker, ranker: QueryLikelihoodRanker, query: str
) -> None:
    first, window = make_window(12, "an earlier query"), make_window(12, query)
    expected_first, expected = rank_windows(forgetful, [first, window])
    (cold,), (warm,) = rank_windows(ranker, [first]), rank_windows(ranker, [window])
    assert cold.scores == pytest.approx(expected_first.scores, abs=1e-5)
    assert warm.scores == pytest.approx(expected.scores, abs=1e-5)
    assert (expected.cached_passages, cold.cached_passages, warm.cached_passages) == (0, 0, 12)
    assert max(warm.scores) - min(warm.scores) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_scores_are_those_without_a_cache_for_each_architecture(
    tmp_path: Path, architecture: str, precision: str
) -> None:
    folder = write_causal_lm(tmp_path / "lm", architecture, byte_level() if architecture == "qwen2" else metaspace())
    window = make_window(12)
    without, keeping = (
        QueryLikelihoodRanker(folder, device="cpu", precision=precision, state_bytes=bound)  # type: ignore[arg-type]
        for bound in (0, ENOUGH_BYTES)
    )
    (expected,) = rank_windows(without, [window])
    (cold,), (warm,) = rank_windows(keeping, [window]), rank_windows(keeping, [window])
    allowed = 1e-5 if precision == "float32" else 2e-2
    assert cold.scores == pytest.approx(expected.scores, abs=allowed)
    assert warm.scores == pytest.approx(expected.scores, abs=allowed)
    assert (cold.cached_passages, warm.cached_passages) == (0, 12)


def test_known_and_new_passages_share_a_window(forgetful: QueryLikelihoodRanker, ranker: QueryLikelihoodRanker) -> None:
    window = make_window(9)
    rank_windows(ranker, [replace(window, passages=window.passages[1::2])])
    (mixed,), (expected,) = rank_windows(ranker, [window]), rank_windows(forgetful, [window])
    assert mixed.cached_passages == 4
    assert mixed.scores == pytest.approx(expected.scores, abs=1e-5)


def test_windows_of_several_queries_in_a_batch_are_counted_apart(
    forgetful: QueryLikelihoodRanker, ranker: QueryLikelihoodRanker
) -> None:
    """The second window finds what was read before, and the third passage, which was read for the first window."""
    windows = [make_window(3, "one"), make_window(5, "another query"), make_window(2, "one"), make_window(0)]
    rank_windows(ranker, [windows[2]])
    rankings = rank_windows(ranker, windows)
    assert [ranking.cached_passages for ranking in rankings] == [2, 3, 2, 0]
    for ranking, expected in zip(rankings, rank_windows(forgetful, windows), strict=True):
        assert ranking.scores == pytest.approx(expected.scores, abs=1e-5)


def test_window_of_known_passages_costs_the_tokens_of_the_query(ranker: QueryLikelihoodRanker) -> None:
    window = make_window(6)
    new = ranker.encode(window)
    assert new.tokens == sum(len(prompt) - 1 for prompt in new.prompts)
    ranker.rank([new])
    known = ranker.encode(window)
    assert known.prompts == new.prompts
    assert known.tokens == 6 * len(ranker.query_ids(window.query.text))


def test_nothing_is_kept_by_default(forgetful: QueryLikelihoodRanker) -> None:
    window = make_window(4)
    for _ in range(2):
        assert rank_windows(forgetful, [window])[0].cached_passages == 0
    assert (forgetful.states.max_bytes, forgetful.states.used_bytes, forgetful.states.misses) == (0, 0, 0)


def test_states_stay_within_their_bound(checkpoint: Path, forgetful: QueryLikelihoodRanker) -> None:
    probe = QueryLikelihoodRanker(checkpoint, device="cpu", state_bytes=ENOUGH_BYTES)
    window = make_window(9)
    rank_windows(probe, [window])
    bound = probe.states.used_bytes // 2
    ranker = QueryLikelihoodRanker(checkpoint, device="cpu", state_bytes=bound)
    for _ in range(3):
        (ranking,) = rank_windows(ranker, [window])
        assert 0 < ranker.states.used_bytes <= bound
        assert ranking.scores == pytest.approx(rank_windows(forgetful, [window])[0].scores, abs=1e-5)


def test_passage_larger_than_the_bound_is_read_each_time(checkpoint: Path) -> None:
    ranker = QueryLikelihoodRanker(checkpoint, device="cpu", state_bytes=40_000)
    window = Window(Query("q"), (Passage("short", "w1"), Passage("long", "w1 w2 " * 100)))
    assert [rank_windows(ranker, [window])[0].cached_passages for _ in range(3)] == [0, 1, 1]


def test_another_template_is_no_hit(checkpoint: Path, tmp_path: Path, ranker: QueryLikelihoodRanker) -> None:
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    other = QueryLikelihoodRanker(checkpoint, str(tmp_path / "template.yaml"), device="cpu", state_bytes=ENOUGH_BYTES)
    other.states = ranker.states
    window = make_window(5)
    assert [rank_windows(each, [window])[0].cached_passages for each in (ranker, other, other)] == [0, 0, 5]


def test_cut_passage_is_known_by_what_is_shown(checkpoint: Path) -> None:
    ranker = QueryLikelihoodRanker(checkpoint, device="cpu", passage_tokens=8, state_bytes=ENOUGH_BYTES)

    def hits(text: str) -> int:
        prepared = ranker.prepare(Query("q"), [Passage("d", text)])
        return rank_windows(ranker, [Window(prepared.query, prepared.passages)])[0].cached_passages

    beginning = "w1 w2 w3 w4 w5 w6 w7 w8 w9 "
    assert [hits(text) for text in (beginning * 3, beginning * 5, "w1", "w1 w2")] == [0, 1, 0, 0]


def test_model_that_cannot_be_packed_keeps_no_states(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.models.packing_check._unsupported_config", lambda config: "a test says so")
    ranker = QueryLikelihoodRanker(checkpoint, device="cpu", state_bytes=ENOUGH_BYTES)
    window = make_window(3)
    assert ranker.info.batching == "one_by_one"
    assert [rank_windows(ranker, [window])[0].cached_passages for _ in range(2)] == [0, 0]


def test_batch_between_two_layers_of_another_changes_no_score(
    checkpoint: Path, forgetful: QueryLikelihoodRanker
) -> None:
    """The inner batch displaces the states that the outer one is reading."""
    window, inner = make_window(4), make_window(9, "more urgent")
    probe = QueryLikelihoodRanker(checkpoint, device="cpu", state_bytes=ENOUGH_BYTES)
    rank_windows(probe, [window])
    ranker = QueryLikelihoodRanker(checkpoint, device="cpu", state_bytes=probe.states.used_bytes)
    rank_windows(ranker, [window])
    pending, found = [inner], list[tuple[float, ...]]()

    def preempt() -> None:
        if pending:
            found.extend(ranking.scores for ranking in rank_windows(ranker, [pending.pop()]))

    ranker.call_between_layers(preempt)
    (outer,) = rank_windows(ranker, [window])
    assert outer.cached_passages == 4
    for scores, expected in zip([outer.scores, *found], rank_windows(forgetful, [window, inner]), strict=True):
        assert scores == pytest.approx(expected.scores, abs=1e-5)
    assert ranker.states.used_bytes <= ranker.states.max_bytes
