"""Objective of PE-Rank: the scores of serving, and the weighted sum of its parts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.pe_rank.model import PEModel, load_pe_base
from rerank_training.pe_rank.objective import PECollator, PEObjective, with_text
from rerank_training.trainer.losses import kl, listmle, stepwise_listmle
from rich.console import Console
from torch import Tensor

from rerank.models.encoder import Encoder
from rerank.prompting.vector_prompts import VectorPrompts
from rerank.rankers.base import rank_windows
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import Window
from tests.pe_checkpoints import SHORT, write_perturbed, write_published
from tests.training.pe_rank.pe_lists import training_lists

pytestmark = pytest.mark.slow

LISTS = training_lists(6)


@pytest.fixture(scope="module", params=["ours", "published"])
def folder(
    request: pytest.FixtureRequest, checkpoint: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("pe") / request.param
    if request.param == "ours":
        return write_perturbed(out, checkpoint)
    return write_published(out, encoder, template=SHORT)


@cache
def model_and_batch(folder: Path, encoder: Encoder, stepwise: bool = False) -> tuple[PEModel, dict[str, Tensor]]:
    base = load_pe_base(folder, encoder, None)
    views = [
        VectorPrompts(template, base.tokenizer, base.model.own_vocabulary, text_tokens=4)
        for template in (base.template, with_text(base.template))
    ]
    console = Console(quiet=True)
    passages = VectorTable(encoder.encode_passages, texts_of([LISTS], "passages"), console)
    queries = VectorTable(encoder.encode_queries, texts_of([LISTS], "queries"), console)
    collator = PECollator(
        views[0],
        passages,
        queries if views[0].reads_query_vector else None,
        4096,
        text_prompts=views[1],
        with_choices=stepwise,
    )
    return base.model, collator(LISTS)


@pytest.mark.parametrize("decoding", ["one_step", "dynamic"])
def test_scores_are_those_of_serving(folder: Path, encoder: Encoder, decoding: str) -> None:
    model, batch = model_and_batch(folder, encoder)
    scores = PEObjective(listmle, stepwise=decoding == "dynamic").scores(model, batch)
    ranker = PERankRanker(folder, encoder, "cpu", decoding=decoding)  # type: ignore[arg-type]
    ready = [ranker.prepare(item.query, item.passages) for item in LISTS]
    served = rank_windows(ranker, [Window(one.query, one.passages) for one in ready])
    for row, ranking in enumerate(served):
        own = scores[row, : len(ranking.scores)]
        expected = torch.tensor(ranking.scores)
        if decoding == "one_step":
            own = own.log_softmax(dim=0)
        torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-4)


def test_later_steps_read_the_choices_of_the_teacher(folder: Path, encoder: Encoder) -> None:
    """Row k equals the scores after a prompt with the teacher's first k passages appended."""
    model, batch = model_and_batch(folder, encoder, stepwise=True)
    objective = PEObjective(stepwise_listmle, stepwise=True)
    scores = objective._scores(model, batch)
    for row, (item, last) in enumerate(zip(LISTS, batch["last_index"].tolist(), strict=True)):
        n = len(item.passages)
        embeddings, passages = model.embed(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        for step in range(n):
            prompt = embeddings[row : row + 1, : last + 1 + step]
            state = model.transformer(inputs_embeds=prompt, use_cache=False).last_hidden_state[0, -1]
            torch.testing.assert_close(scores[row, step, :n], passages[row, :n] @ state, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stepwise", [False, True])
def test_loss_is_the_weighted_sum_of_its_parts(folder: Path, encoder: Encoder, stepwise: bool) -> None:
    model, batch = model_and_batch(folder, encoder, stepwise)
    loss = stepwise_listmle if stepwise else listmle
    vectors, with_text, with_kl, full = (
        PEObjective(loss, stepwise, *weights).loss(model, batch) for weights in ((0, 0), (1, 0), (0, 1), (0.5, 0.2))
    )
    expected = vectors + 0.5 * (with_text - vectors) + 0.2 * (with_kl - vectors)
    torch.testing.assert_close(full, expected, atol=1e-5, rtol=1e-5)
    assert with_text - vectors != vectors


def test_stepwise_divergence_is_the_sum_over_steps_of_the_remaining_passages(folder: Path, encoder: Encoder) -> None:
    model, batch = model_and_batch(folder, encoder, stepwise=True)
    objective = PEObjective(stepwise_listmle, stepwise=True, kl_weight=1)
    plain, text = objective._scores(model, batch), objective._scores(model, batch, "text_")
    expected = []
    for row, item in enumerate(LISTS):
        order = batch["order"][row].tolist()
        expected.append(torch.tensor(0.0))
        for step in range(len(item.passages) - 1):
            left = torch.tensor(order[step : len(item.passages)])
            everything = torch.ones(1, len(left), dtype=torch.bool)
            expected[-1] = expected[-1] + kl(plain[row, step, left][None], text[row, step, left][None], everything)
    found = objective.loss(model, batch) - replace(objective, kl_weight=0.0).loss(model, batch)
    torch.testing.assert_close(found, torch.stack(expected).mean(), atol=1e-4, rtol=1e-4)


def test_divergence_in_one_step_has_no_gradient_for_the_scores_with_text(folder: Path, encoder: Encoder) -> None:
    _, batch = model_and_batch(folder, encoder)
    scores = torch.randn(6, 5, requires_grad=True)
    text_scores = torch.randn(6, 5, requires_grad=True)
    PEObjective(listmle, kl_weight=1)._divergence(scores, text_scores, batch).backward()
    assert scores.grad is not None
    assert text_scores.grad is None
