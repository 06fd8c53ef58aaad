"""FIRST: scores, calibration, permutations, adapters, truncation, and checkpoints that are rejected."""

from __future__ import annotations

import math
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Sliding, Step
from rerank.errors import CheckpointError
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.listwise import ListwisePrompt, ListwiseRenderer
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker, FirstScoring
from rerank.types import Candidate, Passage, Query, ScoreKind, Window
from tests.causal_lms import write_causal_lm
from tests.fakes import check_overtaking
from tests.small_tokenizers import byte_level, byte_level_numbers

TEXTS = ["a flea", "the moon and the tides", "bread", "a violin", "sand"]


def window(*texts: str) -> Window:
    return Window(Query("what jumps"), tuple(Passage(f"d{place}", text) for place, text in enumerate(texts)))


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "llama", byte_level())


@pytest.fixture(scope="module")
def ranker(lm: Path) -> FirstRanker:
    return FirstRanker(lm, "first", device="cpu")


def test_scores_are_log_probabilities_over_the_window(ranker: FirstRanker) -> None:
    for n in (1, 2, 5):
        scores = rank_windows(ranker, [window(*TEXTS[:n])])[0].scores
        assert torch.tensor(scores).exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert ranker.info.score_kind is ScoreKind.WINDOW_LOG_PROB


def test_numbers_that_are_single_tokens_allow_windows_of_hundreds(tmp_path: Path) -> None:
    checkpoint = write_causal_lm(tmp_path / "lm", "llama", byte_level_numbers())
    wide = FirstRanker(checkpoint, "first", IdentifierKind.NUMBERS, device="cpu")
    assert wide.info.max_window_size == 999
    assert len(rank_windows(wide, [window(*["x"] * 100)])[0].scores) == 100


def test_content_free_calibration_removes_the_prior_of_the_identifiers(lm: Path, ranker: FirstRanker) -> None:
    """Passages without content get equal scores with calibration, and different ones without."""
    calibrated = FirstRanker(lm, "first", scoring=FirstScoring(calibration="content_free"), device="cpu")
    empty = Window(Query("N/A"), tuple(Passage(f"d{place}", "N/A") for place in range(5)))
    before, after = rank_windows(ranker, [empty])[0].scores, rank_windows(calibrated, [empty])[0].scores
    assert max(before) - min(before) > 0.1
    assert after == pytest.approx([torch.tensor(0.2).log().item()] * 5, abs=1e-4)


def test_calibrated_scores_are_the_plain_scores_minus_the_prior(lm: Path, ranker: FirstRanker) -> None:
    calibrated = FirstRanker(lm, "first", scoring=FirstScoring(calibration="content_free"), device="cpu")
    plain = torch.tensor(rank_windows(ranker, [window(*TEXTS)])[0].scores)
    prior = torch.tensor(rank_windows(ranker, [Window(Query("N/A"), (Passage("d", "N/A"),) * 5)])[0].scores)
    expected = torch.log_softmax(plain - prior, dim=0).tolist()
    assert rank_windows(calibrated, [window(*TEXTS)])[0].scores == pytest.approx(expected, abs=1e-4)


def test_permutations_average_the_scores_of_shuffled_windows(lm: Path, ranker: FirstRanker) -> None:
    """Compared with ranking each order separately without permutations."""
    thrice = FirstRanker(lm, "first", scoring=FirstScoring(permutations=3), device="cpu")
    by_order = []
    for order in ([0, 1, 2, 3, 4], random.Random(1).sample(range(5), 5), random.Random(2).sample(range(5), 5)):
        scores = rank_windows(ranker, [window(*(TEXTS[place] for place in order))])[0].scores
        by_order.append([scores[order.index(place)] for place in range(5)])
    expected = torch.tensor(by_order).mean(dim=0).tolist()
    assert rank_windows(thrice, [window(*TEXTS)])[0].scores == pytest.approx(expected, abs=1e-4)
    assert thrice.encode(window(*TEXTS)).tokens == 3 * ranker.encode(window(*TEXTS)).tokens


@pytest.mark.parametrize("permutations", [1, 2])
def test_order_prior_adds_its_log_prior_to_every_place(lm: Path, permutations: int) -> None:
    """Compared with softmax(log p - x · place), computed from the scores without it."""
    plain, prior = (
        FirstRanker(lm, "first", scoring=FirstScoring(permutations=permutations, order_prior=x), device="cpu")
        for x in (0.0, 0.3)
    )
    (without,), (with_prior,) = (rank_windows(ranker, [window(*TEXTS)]) for ranker in (plain, prior))
    weights = [math.exp(score - 0.3 * place) for place, score in enumerate(without.scores)]
    expected = [math.log(weight / sum(weights)) for weight in weights]
    assert with_prior.scores == pytest.approx(expected, abs=1e-5)


def test_order_prior_is_left_out_of_a_window_without_an_order(lm: Path) -> None:
    plain, prior = (FirstRanker(lm, "first", scoring=FirstScoring(order_prior=x), device="cpu") for x in (0.0, 0.3))
    unordered = replace(window(*TEXTS), is_ordered=False)
    assert rank_windows(prior, [unordered])[0].scores == rank_windows(plain, [unordered])[0].scores


def test_windows_with_permutations_are_independent_in_a_batch(lm: Path) -> None:
    twice = FirstRanker(lm, "first", scoring=FirstScoring(permutations=2), device="cpu")
    first, second = window(*TEXTS), window(*TEXTS[:2])
    together = rank_windows(twice, [first, second])
    assert together[0].scores == pytest.approx(rank_windows(twice, [first])[0].scores, abs=1e-4)
    assert together[1].scores == pytest.approx(rank_windows(twice, [second])[0].scores, abs=1e-4)


@pytest.mark.parametrize("permutations", [1, 3])
def test_truncated_passages_are_reported_by_their_place_in_the_window(lm: Path, permutations: int) -> None:
    ranker = FirstRanker(lm, "first", scoring=FirstScoring(permutations=permutations), device="cpu")
    encoded = ranker.encode(window("short", "word " * 3000, "tiny", "other " * 3000))
    assert encoded.truncated == (1, 3)
    assert [len(prompt) <= 4096 for prompt in encoded.prompts] == [True] * permutations


async def test_engine_renders_each_window_once_on_the_encode_thread(lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ranks it on another thread, without rendering it again."""
    renders = []
    render = ListwiseRenderer.prompt

    def counting(self: ListwiseRenderer, *args: Any) -> ListwisePrompt:
        renders.append(threading.current_thread().name)
        return render(self, *args)

    monkeypatch.setattr(ListwiseRenderer, "prompt", counting)
    candidates = tuple(Candidate(Passage(f"d{place}", f"text {place}")) for place in range(25))
    for permutations in (1, 2):
        renders.clear()
        ranker = FirstRanker(lm, "first", scoring=FirstScoring(permutations=permutations), device="cpu")
        async with Engine({"first": ranker}, EngineConfig()) as engine:
            ranking = await engine.run(RankRequest(Query("q"), candidates, (Step("first", Sliding(10, 5)),)))
        assert len(ranking.trace.windows) == 4
        assert renders == ["encode first_0"] * 4 * permutations


def test_adapter_without_a_base_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="names no base_model_name_or_path"):
        FirstRanker(tmp_path, "first", device="cpu")


def test_bfloat16_weights_give_float32_scores(lm: Path, tmp_path: Path) -> None:
    """The rows of the identifiers are float32 for any checkpoint, because logits rounded to bfloat16 tie."""
    shutil.copytree(lm, tmp_path / "bf16")
    weights = {name: tensor.bfloat16() for name, tensor in load_file(lm / "model.safetensors").items()}
    save_file(weights, tmp_path / "bf16" / "model.safetensors", metadata={"format": "pt"})
    scores = rank_windows(FirstRanker(tmp_path / "bf16", "first", device="cpu"), [window(*TEXTS)])[0].scores
    assert any(torch.tensor(score).bfloat16().item() != pytest.approx(score, abs=1e-6) for score in scores)


def test_windows_share_a_forward_pass(lm: Path, ranker: FirstRanker) -> None:
    assert ranker.info.batching == "packed"
    rows = []
    with torch.no_grad():
        hook = ranker._reader._model.register_forward_pre_hook(
            lambda _, __, options: rows.append(tuple(options["input_ids"].shape)), with_kwargs=True
        )
        windows = [window(*TEXTS), window(*TEXTS[:2]), window("long " * 50)]
        rank_windows(ranker, windows)
    hook.remove()
    assert rows == [(1, sum(ranker.encode(each).tokens for each in windows))]


def test_prepared_passages_get_the_scores_of_unprepared_ones(ranker: FirstRanker) -> None:
    texts = [*TEXTS, "word " * 3000, "ends with a stop."]
    prepared = ranker.prepare(Query("what jumps"), window(*texts).passages)
    assert all(passage.token_ids for passage in prepared.passages)
    ready, raw = Window(prepared.query, prepared.passages), window(*(text.strip() for text in texts))
    assert rank_windows(ranker, [ready]) == rank_windows(ranker, [raw])
    assert ranker.encode(ready).tokens <= 4096


def test_bfloat16_on_the_cpu_is_close_to_float32_but_not_equal(lm: Path, ranker: FirstRanker) -> None:
    half = rank_windows(FirstRanker(lm, "first", device="cpu", precision="bfloat16"), [window(*TEXTS)])[0].scores
    exact = rank_windows(ranker, [window(*TEXTS)])[0].scores
    assert half == pytest.approx(exact, abs=0.3)
    assert half != pytest.approx(exact, abs=1e-5)


def test_window_that_overtakes_another_one_changes_no_score(lm: Path) -> None:
    ranker = FirstRanker(lm, "first", device="cpu")
    check_overtaking(ranker, [window(*TEXTS), window(*TEXTS[::-1])], [window(*TEXTS[:2])])
