"""Alignment: a passage's text is what follows its vector."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rerank_training.losses import IGNORED
from rerank_training.pe_align import ALIGN_TEMPLATE, AlignCollator, AlignObjective, passes
from rerank_training.pe_examples import VectorTable
from rerank_training.pe_model import PEBase, load_pe_base
from rich.console import Console

from rerank.models.encoder import Encoder
from rerank.prompting.templates import PASSAGE_SLOT, load_template
from rerank.prompting.vector_prompts import VectorPrompts
from tests.pe_checkpoints import write_published

TEXTS = ["A flea lives a year.", "Ice flows.", "Four strings and a bow, played between the knees of a musician."]
CPU = torch.device("cpu")


@pytest.fixture
def base(encoder: Encoder, tmp_path: Path) -> PEBase:
    loaded = load_pe_base(write_published(tmp_path / "published", encoder), encoder, None, CPU)
    loaded.tokenizer.eos_token = "<RANK>"
    return loaded


@pytest.fixture
def collator(base: PEBase, encoder: Encoder) -> AlignCollator:
    prompts = VectorPrompts(load_template(ALIGN_TEMPLATE), base.tokenizer, in_chat=True, text_tokens=16)
    return AlignCollator(prompts, VectorTable(encoder, TEXTS, Console(quiet=True)), base.tokenizer)


def test_text_follows_its_one_vector_and_ends(base: PEBase, collator: AlignCollator) -> None:
    batch = collator(TEXTS)
    assert ((batch["input_ids"] == PASSAGE_SLOT).sum(dim=1) == 1).all()
    answer = batch["labels"][1][batch["labels"][1] != IGNORED]
    assert base.tokenizer.decode(answer[:-1]).strip() == TEXTS[1]
    assert answer[-1] == base.tokenizer.eos_token_id


def test_long_text_is_cut(collator: AlignCollator) -> None:
    assert ((collator(TEXTS)["labels"] != IGNORED).sum(dim=1) <= 16 + 1).all()


def test_loss_is_the_mean_over_all_tokens_of_texts(base: PEBase, collator: AlignCollator) -> None:
    """Against one text after the other, with logits at every position."""
    batch = collator(TEXTS)
    whole = AlignObjective().loss(base.model, batch)
    total, count = torch.tensor(0.0), 0
    for text in TEXTS:
        one = collator([text])
        states, _ = base.model(one["input_ids"], one["vectors"], one["mask"], one["order"])
        log_probs = base.model.logits(states).log_softmax(dim=-1)[0]
        for place, label in enumerate(one["labels"][0].tolist()):
            if label != IGNORED:
                total, count = total - log_probs[place - 1, label], count + 1
    torch.testing.assert_close(whole, total / count, atol=1e-4, rtol=1e-4)


def test_loss_depends_on_the_vector(base: PEBase, collator: AlignCollator) -> None:
    batch = collator(TEXTS)
    swapped = batch | {"vectors": batch["vectors"].flip(0)}
    assert AlignObjective().loss(base.model, batch) != AlignObjective().loss(base.model, swapped)


def test_each_pass_has_every_text_once_in_an_order_of_its_own() -> None:
    texts = [str(number) for number in range(20)]
    order = passes(texts, epochs=2, seed=0)
    assert sorted(order[:20]) == sorted(order[20:]) == sorted(texts)
    assert order[:20] != order[20:]
    assert passes(texts, 2, 0) == order
