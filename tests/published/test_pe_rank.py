"""PE-Rank's published layout with defaults only: the orders are those of its formula."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, MistralForCausalLM

from rerank.models.encoder import Encoder
from rerank.rankers.base import rank_windows
from rerank.rankers.pe_rank import PERankRanker
from tests.pe_checkpoints import SHORT, vector_window, write_published

WINDOWS = [vector_window(2 + seed % 7, seed=seed, text=f"query number {seed}") for seed in range(50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Path:
    return write_published(tmp_path_factory.mktemp("published") / "mistral", encoder, template=SHORT)


def formula(folder: Path) -> list[list[int]]:
    """Section 3 of the paper: each step reads the prompt and the chosen passages again, and takes the best of the rest.

    A passage is W₂ gelu(W₁ v + b₁) + b₂ of its vector v, both as an input and in the inner product with the last state.
    """
    weights = load_file(folder / "model.safetensors")
    model = MistralForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first, second = (
        (weights[f"model.projector.{layer}.weight"], weights[f"model.projector.{layer}.bias"]) for layer in (0, 2)
    )
    orders = []
    for window in WINDOWS:
        n = len(window.passages)
        vectors = torch.stack([torch.from_numpy(passage.vector) for passage in window.passages])
        hidden = torch.nn.functional.gelu(vectors @ first[0].T + first[1])
        passages = hidden @ second[0].T + second[1]
        bodies = "".join(f"{rank} [<PLACEHOLDER>]" for rank in range(1, n + 1))
        turn = [{"role": "user", "content": f"{window.query.text} {bodies}rank {n}"}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        inputs = model.get_input_embeddings()(ids).clone()
        inputs[ids == tokenizer.convert_tokens_to_ids("<PLACEHOLDER>")] = passages
        order: list[int] = []
        while len(order) < n:
            state = model.model(inputs_embeds=torch.cat([inputs, passages[order]])[None]).last_hidden_state[0, -1]
            left = [place for place in range(n) if place not in order]
            order.append(max(left, key=lambda place: (passages[place] @ state).item()))
        orders.append(order)
    return orders


@torch.no_grad()
def test_fifty_of_fifty_orders_with_defaults_only(folder: Path, encoder: Encoder) -> None:
    ranker = PERankRanker(folder, encoder, device="cpu")
    assert ranker.info.warning == ""
    assert [list(ranking.permutation) for ranking in rank_windows(ranker, WINDOWS)] == formula(folder)
