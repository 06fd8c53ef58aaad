"""FIRST with block attention: the order of a window does not matter, and a passage that was read is not read again."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rerank.config import FirstModel
from rerank.errors import CheckpointError, ConfigError, InvalidRequest
from rerank.prompting.templates import load_template
from rerank.rankers.base import StateKeeper, rank_windows
from rerank.rankers.first import FirstScoring
from rerank.rankers.first_block import BlockFirstRanker
from rerank.reranking.registry import load_first, load_served
from rerank.types import Passage, Query, Window
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

#: Two passages are equal, one is empty, and the last one is longer than the 20 tokens that are shown.
TEXTS = ["a flea", "the moon and the tides", "bread", "bread", "", "a violin", "sand " * 30]
#: Enough for all states of these tests.
MEGABYTES = 10**7


def window(*texts: str, query: str = "what jumps") -> Window:
    return Window(Query(query), tuple(Passage(f"d{place}", text) for place, text in enumerate(texts)))


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "llama", byte_level())


def ranker_of(lm: Path, state_bytes: int = MEGABYTES) -> BlockFirstRanker:
    return BlockFirstRanker(lm, "first_block", device="cpu", passage_tokens=20, state_bytes=state_bytes)


@pytest.fixture(scope="module")
def ranker(lm: Path) -> BlockFirstRanker:
    return ranker_of(lm)


def scores(ranker: BlockFirstRanker, given: Window) -> tuple[float, ...]:
    return rank_windows(ranker, [given])[0].scores


def test_scores_do_not_depend_on_the_order_of_the_window(ranker: BlockFirstRanker) -> None:
    expected = dict(zip(TEXTS, scores(ranker, window(*TEXTS)), strict=True))
    assert max(expected.values()) - min(expected.values()) > 0.1
    for seed in range(20):
        order = random.Random(seed).sample(TEXTS, len(TEXTS))
        assert scores(ranker, window(*order)) == pytest.approx([expected[text] for text in order], abs=1e-5)


def test_equal_passages_have_equal_scores_and_are_read_once(ranker: BlockFirstRanker) -> None:
    found = scores(ranker, window(*TEXTS))
    assert found[2] == found[3]
    assert sum(map(math.exp, found)) == pytest.approx(1.0, abs=1e-5)
    once = [text for place, text in enumerate(TEXTS) if place != 3]
    assert ranker.encode(window(*TEXTS)).tokens == ranker.encode(window(*once)).tokens


def test_scores_are_the_same_from_kept_states_and_without_them(lm: Path, ranker: BlockFirstRanker) -> None:
    expected = scores(ranker_of(lm, state_bytes=0), window(*TEXTS))
    for _ in range(2):
        assert scores(ranker, window(*TEXTS)) == pytest.approx(expected, abs=1e-5)


def test_passages_of_another_query_cost_the_query_only(lm: Path) -> None:
    ranker = ranker_of(lm)
    assert isinstance(ranker, StateKeeper)
    first, second = (window(*TEXTS, query=query) for query in ("what jumps", "who sings"))
    expected = scores(ranker_of(lm, state_bytes=0), second)
    cold = ranker.encode(second).tokens
    assert rank_windows(ranker, [first])[0].cached_passages == 0
    prepared = ranker.prepare(second.query, second.passages)
    encoded = ranker.encode(Window(prepared.query, prepared.passages))
    _, link, tail, *passages = encoded.prompts
    assert encoded.tokens == len(set(passages)) * (len(link) + 1) + len(tail) < cold
    ranking = ranker.rank([encoded])[0]
    assert ranking.scores == pytest.approx(expected, abs=1e-5)
    assert ranking.cached_passages == len(TEXTS)
    assert ranker.encode(encoded.window).tokens == len(set(passages)) + len(tail)


def test_long_passages_are_truncated(ranker: BlockFirstRanker) -> None:
    encoded = ranker.encode(window(*TEXTS))
    assert encoded.truncated == (6,)
    assert len(encoded.prompts[-1]) == 20


def test_query_too_long_for_any_passage_is_refused(ranker: BlockFirstRanker) -> None:
    with pytest.raises(InvalidRequest, match="of 4095 tokens for a passage; use a shorter query"):
        ranker.encode(window(*TEXTS, query="word " * 5000))


def test_order_prior_prefers_the_first_places(lm: Path, ranker: BlockFirstRanker) -> None:
    prior = BlockFirstRanker(lm, "first_block", scoring=FirstScoring(order_prior=0.3), device="cpu", passage_tokens=20)
    plain, ordered = scores(ranker, window(*TEXTS)), scores(prior, window(*TEXTS))
    differences = [after - before for before, after in zip(plain, ordered, strict=True)]
    steps = [later - earlier for earlier, later in pairwise(differences)]
    assert steps == pytest.approx([-0.3] * (len(TEXTS) - 1), abs=1e-5)


def test_model_with_a_block_template_is_loaded_as_such(lm: Path) -> None:
    model = FirstModel(name="block", ranker="first", path=lm, template="first_block", passage_tokens=20)
    loaded = load_first(model, "cpu", MEGABYTES)
    assert isinstance(loaded, BlockFirstRanker)
    assert loaded.states.max_bytes == MEGABYTES


def test_inference_server_is_refused(lm: Path) -> None:
    servers = {"kind": "vllm", "model": "m", "urls": ["http://127.0.0.1:1"]}
    model = FirstModel(name="block", ranker="first", path=lm, template="first_block", served_by=servers)
    with pytest.raises(ConfigError, match="attention: block"):
        load_served(model)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chat_markup": True}, "plain text"),
        ({"system_message": "Rank."}, "plain text"),
        ({"body": "[{rank}] {candidate}"}, "begins with"),
        ({"body": "{candidate} [{rank}]"}, "ends with"),
        ({"prefix": ""}, "prefix"),
    ],
    ids=str,
)
def test_template_without_blocks_is_refused(lm: Path, change: dict[str, object], problem: str) -> None:
    template = replace(load_template("first_block"), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=problem):
        BlockFirstRanker(lm, template, device="cpu")


@pytest.mark.parametrize("scoring", [FirstScoring(permutations=2), FirstScoring(calibration="content_free")], ids=str)
def test_settings_about_the_order_are_refused(lm: Path, scoring: FirstScoring) -> None:
    with pytest.raises(ConfigError, match="leave permutations and calibration out"):
        BlockFirstRanker(lm, "first_block", scoring=scoring, device="cpu")


def test_sliding_windows_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint = write_causal_lm(tmp_path / "lm", "mistral", byte_level())
    with pytest.raises(CheckpointError, match="mistral, which has layers of a sliding window of 64 tokens"):
        BlockFirstRanker(checkpoint, "first_block", device="cpu")
