"""Query likelihood as a teacher: the scores of the ranker, each computed once, whatever was killed before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rerank_training.lists import likelihoods
from rerank_training.lists.likelihoods import open_likelihoods
from rerank_training.lists.sampling import Pool, make_pool

from rerank.errors import ConfigError
from rerank.rankers.base import rank_windows
from rerank.rankers.query_likelihood import QueryLikelihoodRanker
from rerank.types import EncodedWindow, Passage, Query, Window, WindowRanking
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

PASSAGES = [Passage(f"d{n}", " ".join(f"w{(7 * n + word) % 11}" for word in range(1 + n % 5))) for n in range(7)]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm"), "llama", byte_level())


@pytest.fixture
def config(tmp_path: Path, lm: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(
        f"models:\n- {{name: keep, ranker: identity}}\n- {{name: likely, ranker: query-likelihood, path: {lm}}}\n"
        f"- {{name: short, ranker: query-likelihood, path: {lm}, passage_tokens: 8}}\n"
    )
    return path


def pool(query: str = "which passage", instruction: str = "") -> Pool:
    return make_pool(Query(query, "q", instruction), [], {})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of passages of each window that a model has read."""
    numbers: list[int] = []
    original = QueryLikelihoodRanker.rank

    def rank(self: QueryLikelihoodRanker, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        numbers.extend(len(encoded.prompts) for encoded in windows)
        return original(self, windows)

    monkeypatch.setattr(QueryLikelihoodRanker, "rank", rank)
    return numbers


def test_likelihoods_are_those_of_the_ranker(lm: Path, config: Path, tmp_path: Path) -> None:
    ranker = QueryLikelihoodRanker(lm, device="cpu")
    (expected,) = rank_windows(ranker, [Window(Query("which passage"), tuple(PASSAGES))])
    with open_likelihoods(tmp_path / "kept", config, "", "cpu") as teacher:
        assert teacher(pool(), PASSAGES) == pytest.approx(expected.scores, abs=1e-5)
        assert teacher(pool(), []) == ()


def test_a_passage_is_read_once_for_a_query(config: Path, tmp_path: Path, read: list[int]) -> None:
    same_text = Passage("other", PASSAGES[0].text)
    with open_likelihoods(tmp_path / "kept", config, "likely", "cpu") as teacher:
        first = teacher(pool(), [*PASSAGES[:3], same_text])
        assert first[0] == first[3]
        assert teacher(pool(), PASSAGES[:5])[:3] == first[:3]
        assert teacher(pool("another query"), PASSAGES[:3]) != first[:3]
        teacher(pool(instruction="with an instruction"), PASSAGES[:1])
    assert read == [3, 2, 3, 1]


def test_what_was_read_before_a_kill_is_not_read_again(
    config: Path, tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihoods, "_BATCH", 2)
    rank, kept = QueryLikelihoodRanker.rank, tmp_path / "kept"
    monkeypatch.setattr(QueryLikelihoodRanker, "rank", killed_after(3, rank))
    with pytest.raises(KeyboardInterrupt), open_likelihoods(kept, config, "", "cpu") as teacher:
        teacher(pool(), PASSAGES)
    monkeypatch.setattr(QueryLikelihoodRanker, "rank", rank)
    with open_likelihoods(kept, config, "", "cpu") as teacher:
        resumed = teacher(pool(), PASSAGES)
    assert read == [2, 2, 2, 1]
    with open_likelihoods(tmp_path / "fresh", config, "", "cpu") as teacher:
        assert teacher(pool(), PASSAGES) == pytest.approx(resumed, abs=1e-5)


def killed_after(calls: int, rank: Callable[..., list[WindowRanking]]) -> Callable[..., list[WindowRanking]]:
    left = iter(range(calls))

    def ranks(self: QueryLikelihoodRanker, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rank(self, windows)

    return ranks


def test_file_of_another_model_is_refused(config: Path, tmp_path: Path) -> None:
    with open_likelihoods(tmp_path / "kept", config, "likely", "cpu") as teacher:
        teacher(pool(), PASSAGES)
    message = r'kept holds the likelihoods of another model: .*"passage_tokens": 256.* instead of .*"passage_tokens": 8'
    with pytest.raises(ConfigError, match=message), open_likelihoods(tmp_path / "kept", config, "short", "cpu"):
        pass


def test_file_that_is_no_database_is_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a text that is long enough to be read as a header " * 20)
    with (
        pytest.raises(ConfigError, match=r"kept cannot be read or written: .*; choose another file of --likelihoods"),
        open_likelihoods(tmp_path / "kept", config, "", "cpu"),
    ):
        pass


def test_model_that_is_not_one_of_query_likelihood_is_refused(config: Path, tmp_path: Path) -> None:
    message = "has no model keep with ranker: query-likelihood, but likely, short; give"
    with pytest.raises(ConfigError, match=message), open_likelihoods(tmp_path / "kept", config, "keep", "cpu"):
        pass
    message = "the default settings has no model mine with ranker: query-likelihood, but none; give"
    with pytest.raises(ConfigError, match=message), open_likelihoods(tmp_path / "kept", None, "mine", "cpu"):
        pass
