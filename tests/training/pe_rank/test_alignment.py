"""Alignment: the text of a passage follows its vector."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rerank_training.lists.vector_table import VectorTable
from rerank_training.pe_rank.model import PEBase, load_pe_base
from rerank_training.pe_rank.objective import ALIGN_TEMPLATE, AlignCollator, AlignObjective
from rerank_training.trainer.losses import IGNORE_INDEX
from rich.console import Console

from rerank.models.encoder import Encoder
from rerank.prompting.templates import load_template
from rerank.prompting.vector_prompts import PASSAGE_SLOT, VectorPrompts
from tests.pe_checkpoints import write_published

TEXTS = ["A flea lives a year.", "Ice flows.", "Four strings and a bow, played between the knees of a musician."]


@pytest.fixture
def base(encoder: Encoder, tmp_path: Path) -> PEBase:
    loaded = load_pe_base(write_published(tmp_path / "published", encoder), encoder, None)
    loaded.tokenizer.eos_token = "<RANK>"
    return loaded


@pytest.fixture
def collator(base: PEBase, encoder: Encoder) -> AlignCollator:
    prompts = VectorPrompts(load_template(ALIGN_TEMPLATE), base.tokenizer, in_chat=True, text_tokens=16)
    table = VectorTable(encoder.encode_passages, TEXTS, Console(quiet=True))
    return AlignCollator(prompts, table, base.tokenizer)


def test_text_follows_one_vector(base: PEBase, collator: AlignCollator) -> None:
    batch = collator(TEXTS)
    assert ((batch["input_ids"] == PASSAGE_SLOT).sum(dim=1) == 1).all()
    answer = batch["labels"][1][batch["labels"][1] != IGNORE_INDEX]
    assert base.tokenizer.decode(answer[:-1]).strip() == TEXTS[1]
    assert answer[-1] == base.tokenizer.eos_token_id


def test_loss_is_the_mean_over_all_tokens_of_texts(base: PEBase, collator: AlignCollator) -> None:
    """Compared with one text at a time and logits at every position."""
    batch = collator(TEXTS)
    loss = AlignObjective().loss(base.model, batch)
    total, count = torch.tensor(0.0), 0
    for text in TEXTS:
        one = collator([text])
        states, _ = base.model(one["input_ids"], one["vectors"], one["mask"], one["order"])
        log_probs = base.model.logits(states).log_softmax(dim=-1)[0]
        for index, label in enumerate(one["labels"][0].tolist()):
            if label != IGNORE_INDEX:
                total, count = total - log_probs[index - 1, label], count + 1
    torch.testing.assert_close(loss, total / count, atol=1e-4, rtol=1e-4)
