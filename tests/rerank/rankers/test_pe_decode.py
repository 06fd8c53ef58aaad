"""Dynamic decoding of PE-Rank: equals generation over a vocabulary extended by the passages, alone and in a batch.

The published code asks for BOS before the first passage, but reads none: it hands vectors to `generate`, and in the
transformers that it pins (4.37.2) the text that is said so far then begins with a BOS that the model never sees. In its
training, too, the passages follow the prompt at once. So does the first choice here.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rerank.models.encoder import Encoder
from rerank.rankers.base import rank_windows
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import Window
from tests.causal_lms import CONFIGS, SIZES
from tests.pe_checkpoints import SHORT, random_projector, vector_window, write_published

MAX_PASSAGES = 6
#: Windows and prompts of different sizes; some are longer than the sliding attention window of the Mistral model.
WINDOWS = [vector_window(1 + seed % MAX_PASSAGES, seed, text="word " * (seed % 9)) for seed in range(24)]


@pytest.fixture(scope="module", params=["mistral", "llama"])
def folder(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published(tmp_path_factory.mktemp("published") / request.param, encoder, request.param, SHORT)


@pytest.fixture(scope="module")
def ranker(folder: Path, encoder: Encoder) -> PERankRanker:
    return PERankRanker(folder, encoder, device="cpu", decoding="dynamic")


@pytest.fixture(scope="module")
def orders(ranker: PERankRanker) -> list[tuple[int, ...]]:
    return [rank_windows(ranker, [window])[0].permutation for window in WINDOWS]


class Generation:
    """Reference: passages are further tokens of a causal LM, and `generate` is restricted to the unused ones."""

    def __init__(self, folder: Path, ranker: PERankRanker) -> None:
        weights = {n: t for n, t in load_file(folder / "model.safetensors").items() if "projector" not in n}
        config: PretrainedConfig = CONFIGS[folder.name].from_pretrained(folder)
        self.vocab_size = config.vocab_size
        self.model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        self.model.load_state_dict({n: t for n, t in weights.items() if "encoder" not in n}, strict=True)
        self.model.resize_token_embeddings(self.vocab_size + MAX_PASSAGES)
        self.projector = random_projector(384, SIZES["hidden_size"])  # type: ignore[arg-type]
        self.ranker = ranker

    @torch.inference_mode()
    def order(self, window: Window) -> tuple[int, ...]:
        vectors = torch.stack([torch.from_numpy(p.vector) for p in window.passages if p.vector is not None])
        p = self.projector
        hidden = torch.nn.functional.gelu(vectors @ p["0.weight"].T + p["0.bias"])
        n = len(vectors)
        for table in (self.model.get_input_embeddings(), self.model.get_output_embeddings()):
            table.weight[self.vocab_size : self.vocab_size + n] = hidden @ p["2.weight"].T + p["2.bias"]
        passage_tokens = iter(range(self.vocab_size, self.vocab_size + n))
        slots = self.ranker._prompts.token_ids(window.query, window.passages)
        ids = [next(passage_tokens) if token < 0 else token for token in slots]
        prompt = torch.tensor([ids])

        def unused(_: int, generated: torch.Tensor) -> list[int]:
            return sorted({*range(self.vocab_size, self.vocab_size + n)} - {*generated[len(ids) :].tolist()})

        options = {"max_new_tokens": n, "do_sample": False, "pad_token_id": 0, "prefix_allowed_tokens_fn": unused}
        output = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)  # type: ignore[operator]
        return tuple(token - self.vocab_size for token in output[0, len(ids) :].tolist())


@pytest.mark.slow
def test_order_equals_generation_over_an_extended_vocabulary(folder, ranker, orders):
    generation = Generation(folder, ranker)
    assert orders == [generation.order(window) for window in WINDOWS]


@pytest.fixture(scope="module")
def one_step(folder: Path, encoder: Encoder) -> list[tuple[int, ...]]:
    ranker = PERankRanker(folder, encoder, device="cpu", decoding="one_step")
    return [rank_windows(ranker, [window])[0].permutation for window in WINDOWS]


def test_one_step_is_the_first_step(orders, one_step):
    assert [order[0] for order in orders] == [order[0] for order in one_step]


def test_choices_and_their_time_are_told_from_those_of_the_prompt(ranker):
    window = max(WINDOWS, key=lambda window: len(window.passages))
    ranking, of_two = rank_windows(ranker, [window, replace(window, top_n=2)])
    assert (ranking.decode_cost.tokens, of_two.decode_cost.tokens) == (len(window.passages) - 1, 2)
    assert ranking.decode_cost.ms > 0


def with_top_n(windows: Sequence[Window], top_n: int) -> list[Window]:
    return [replace(window, top_n=top_n) for window in windows]


@pytest.mark.parametrize("top_n", [1, 2, 3, MAX_PASSAGES - 1, MAX_PASSAGES, MAX_PASSAGES + 9])
def test_top_n_is_a_prefix_of_the_full_order(ranker, orders, top_n):
    for order, ranking in zip(orders, rank_windows(ranker, with_top_n(WINDOWS, top_n)), strict=True):
        assert ranking.permutation[:top_n] == order[:top_n]
        assert sorted(ranking.permutation) == sorted(order)


def test_passages_after_top_n_are_in_order_of_the_last_inner_products(ranker, one_step):
    """With a top_n of 1, the order is as with one_step decoding."""
    assert [ranking.permutation for ranking in rank_windows(ranker, with_top_n(WINDOWS, 1))] == one_step


def test_top_n_of_a_window_does_not_affect_others_of_its_batch(ranker, orders):
    mixed = [replace(window, top_n=place % 4) for place, window in enumerate(WINDOWS)]
    together = rank_windows(ranker, mixed)
    for place, (order, ranking) in enumerate(zip(orders, together, strict=True)):
        kept = place % 4 or len(order)
        assert ranking.permutation[:kept] == order[:kept]
        assert ranking == rank_windows(ranker, [mixed[place]])[0]


@pytest.mark.parametrize(
    ("n", "top_n", "passes"), [(6, 0, 5), (6, 1, 1), (6, 2, 2), (6, 5, 5), (6, 6, 5), (6, 60, 5), (2, 1, 1), (1, 1, 0)]
)
def test_each_chosen_passage_takes_one_forward_pass(ranker, n, top_n, passes):
    counted = []
    hook = ranker._transformer.register_forward_hook(lambda *_: counted.append(1))
    try:
        rank_windows(ranker, with_top_n([vector_window(n, seed=1)], top_n))
    finally:
        hook.remove()
    assert len(counted) == passes


@pytest.mark.parametrize("batch", [7, len(WINDOWS)])
def test_order_does_not_depend_on_the_batch(ranker, orders, batch):
    batches = [WINDOWS[start : start + batch] for start in range(0, len(WINDOWS), batch)]
    assert [ranking.permutation for one in batches for ranking in rank_windows(ranker, one)] == orders


def test_equal_passages_keep_the_order_of_the_window(ranker):
    window = vector_window(2, seed=3)
    one, other = window.passages
    same = Window(window.query, (one,) * 37)
    mixed = Window(window.query, (one, other) * 5)
    assert rank_windows(ranker, [same])[0].permutation == tuple(range(37))
    order = rank_windows(ranker, [mixed, same])[0].permutation
    for parity in (0, 1):
        assert [p for p in order if p % 2 == parity] == list(range(parity, 10, 2))
