"""Choosing passage after passage: what generation over an extended vocabulary gives, alone and in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rerank.encoder import Encoder
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import ScoreKind, Window
from tests.causal_lms import CONFIGS, SIZES
from tests.pe_checkpoints import SHORT, random_projector, vector_window, write_published

WIDEST = 6
#: Of different widths and lengths of prompt; Mistral's attention reaches less far back than some of them are long.
WINDOWS = [vector_window(1 + seed % WIDEST, seed, text="word " * (seed % 9)) for seed in range(100)]


@pytest.fixture(scope="module", params=["mistral", "llama"])
def folder(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published(tmp_path_factory.mktemp("published") / request.param, encoder, request.param, SHORT)


@pytest.fixture(scope="module")
def ranker(folder: Path, encoder: Encoder) -> PERankRanker:
    return PERankRanker(folder, encoder, device="cpu", decoding="dynamic")


@pytest.fixture(scope="module")
def alone(ranker: PERankRanker) -> list[tuple[int, ...]]:
    return [ranker.rank([window])[0].permutation for window in WINDOWS]


class Generation:
    """The slow way: passages are further tokens of a whole causal LM, and `generate` may say those that are left."""

    def __init__(self, folder: Path, ranker: PERankRanker) -> None:
        weights = {n: t for n, t in load_file(folder / "model.safetensors").items() if "projector" not in n}
        config: PretrainedConfig = CONFIGS[folder.name].from_pretrained(folder)
        self.words = config.vocab_size
        self.model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        self.model.load_state_dict({n: t for n, t in weights.items() if "encoder" not in n}, strict=True)
        self.model.resize_token_embeddings(self.words + WIDEST)
        self.projector = random_projector(384, SIZES["hidden_size"])  # type: ignore[arg-type]
        self.ranker = ranker

    @torch.inference_mode()
    def order(self, window: Window) -> tuple[int, ...]:
        vectors = torch.stack([torch.from_numpy(p.vector) for p in window.passages if p.vector is not None])
        p = self.projector
        hidden = torch.nn.functional.gelu(vectors @ p["0.weight"].T + p["0.bias"])
        n = len(vectors)
        for table in (self.model.get_input_embeddings(), self.model.get_output_embeddings()):
            table.weight[self.words : self.words + n] = hidden @ p["2.weight"].T + p["2.bias"]
        own = iter(range(self.words, self.words + n))
        slots = self.ranker._prompts.token_ids(window.query, window.passages)
        ids = [next(own) if token < 0 else token for token in slots]
        prompt = torch.tensor([ids])

        def left(_: int, said: torch.Tensor) -> list[int]:
            return sorted({*range(self.words, self.words + n)} - {*said[len(ids) :].tolist()})

        generated = self.model.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=n,
            do_sample=False,
            pad_token_id=0,
            prefix_allowed_tokens_fn=left,
        )
        return tuple(token - self.words for token in generated[0, len(ids) :].tolist())


def test_order_equals_generation_over_an_extended_vocabulary(
    folder: Path, ranker: PERankRanker, alone: list[tuple[int, ...]]
) -> None:
    generation = Generation(folder, ranker)
    assert alone == [generation.order(window) for window in WINDOWS]


def test_order_differs_from_one_step(folder: Path, encoder: Encoder, alone: list[tuple[int, ...]]) -> None:
    """Otherwise the other tests of this file would show little; and both begin with the same passage."""
    scores = PERankRanker(folder, encoder, device="cpu").rank(WINDOWS)
    assert [order[0] for order in alone] == [one.permutation[0] for one in scores]
    assert sum(order != one.permutation for order, one in zip(alone, scores, strict=True)) > len(WINDOWS) / 4


@pytest.mark.parametrize("batch", [7, 100])
def test_a_window_alone_and_in_a_batch_agrees(ranker: PERankRanker, alone: list[tuple[int, ...]], batch: int) -> None:
    together = [
        ranking.permutation
        for start in range(0, len(WINDOWS), batch)
        for ranking in ranker.rank(WINDOWS[start : start + batch])
    ]
    assert together == alone


def test_scores_say_the_place_and_nothing_else(ranker: PERankRanker) -> None:
    (ranking,) = ranker.rank([vector_window(6, seed=1)])
    assert sorted(ranking.scores) == [-5, -4, -3, -2, -1, 0]
    assert ranker.info.score_kind is ScoreKind.RANK


def test_equal_passages_keep_the_order_of_the_window(ranker: PERankRanker) -> None:
    window = vector_window(2, seed=3)
    one, other = window.passages
    same = Window(window.query, (one,) * 37)
    mixed = Window(window.query, (one, other) * 5)
    assert ranker.rank([same])[0].permutation == tuple(range(37))
    for alike in ([p for p in ranker.rank([mixed, same])[0].permutation if p % 2 == parity] for parity in (0, 1)):
        assert alike == sorted(alike)


def test_vocabulary_is_neither_widened_nor_written(ranker: PERankRanker) -> None:
    table = ranker._transformer.get_input_embeddings()
    before = table.weight.clone()
    ranker.rank(WINDOWS[:20])
    assert ranker._transformer.get_input_embeddings() is table
    assert torch.equal(table.weight, before)


@pytest.mark.parametrize(("n", "fed_back"), [(1, 0), (2, 0), (3, 1), (8, 6)])
def test_tokens_count_the_choices_that_are_read(
    folder: Path, encoder: Encoder, ranker: PERankRanker, n: int, fed_back: int
) -> None:
    one_step = PERankRanker(folder, encoder, device="cpu")
    window = vector_window(n, seed=1)
    assert ranker.tokens(window) == one_step.tokens(window) + fed_back
