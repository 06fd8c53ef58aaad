"""E2Rank's objective: the vectors of serving, and losses as loops compute them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rerank_training.e2rank.arguments import E2RankArguments
from rerank_training.e2rank.training import E2RankCollator, E2RankObjective, ListEncoder, _prompts
from rerank_training.lists.training_list import TrainingList
from rerank_training.retriever.encoder import RetrieverCollator
from rerank_training.trainer.losses import ranknet
from torch import Tensor

from rerank.config import E2RankModel, EncoderConfig
from rerank.config.models import E2RANK_INSTRUCTION
from rerank.models.encoder import Encoder
from rerank.rankers.base import rank_windows
from rerank.reranking.load_models import E2RANK_END_TOKEN, load_ranker, with_path
from rerank.types import Passage, Query, Window
from tests.small_encoder import write_qwen_model


def a_list(query: str, **relevance: float) -> TrainingList:
    return TrainingList(Query(query), tuple(Passage(d, f"text {d}") for d in relevance), tuple(relevance.values()))


#: The passage b is in both.
LISTS = [a_list("first", a=3, b=1, c=0), a_list("second query", b=2, d=5)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = write_qwen_model(tmp_path_factory.mktemp("models") / "base")
    prompts = {"query_prompt": "Instruct: find\nQuery:", "document_prompt": ""}
    return Encoder(EncoderConfig(name=str(folder), pooling="lasttoken", end_token=E2RANK_END_TOKEN, **prompts), "cpu")


@pytest.fixture(scope="module")
def model(encoder: Encoder) -> ListEncoder:
    return ListEncoder(encoder, lora_rank=0).eval()


@pytest.fixture(scope="module")
def batch(encoder: Encoder, model: ListEncoder) -> dict[str, Tensor]:
    arguments = E2RankArguments(lists="", base="", window_size=20)
    prompts = _prompts(encoder, arguments, E2RANK_INSTRUCTION)
    return E2RankCollator(RetrieverCollator(model.tokenizer, 64, model.prompts), prompts)(LISTS)


def test_scores_are_those_of_serving(encoder: Encoder, model: ListEncoder, batch: dict[str, Tensor]) -> None:
    settings = E2RankModel(name="e2rank", ranker="e2rank", precision="float32")
    ranker = load_ranker(with_path(settings, encoder), encoder, "cpu")
    scores = E2RankObjective(ranknet).scores(model, batch)
    for row, item in enumerate(LISTS):
        prepared = ranker.prepare(item.query, item.passages)
        (served,) = rank_windows(ranker, [Window(prepared.query, prepared.passages)])
        np.testing.assert_allclose(scores[row][batch["mask"][row]].numpy(), served.scores, atol=1e-5)


def test_loss_is_that_of_loops(encoder: Encoder, model: ListEncoder, batch: dict[str, Tensor]) -> None:
    """InfoNCE over the distinct passages of both lists, plus twice RankNet over the pairs of each list."""
    objective = E2RankObjective(ranknet, rank_weight=2.0)
    texts = {passage.doc_id: passage.text for item in LISTS for passage in item.passages}
    vectors = dict(zip(texts, encoder.encode_passages(list(texts.values())), strict=True))
    cosines = objective.scores(model, batch).tolist()
    contrast, pairs = [], []
    for row, (item, query) in enumerate(zip(LISTS, encoder.encode_queries([i.query.text for i in LISTS]), strict=True)):
        grades = {passage.doc_id: grade for passage, grade in zip(item.passages, item.relevance, strict=True)}
        logits = {doc_id: float(query @ vector) / 0.03 for doc_id, vector in vectors.items()}
        total = math.log(sum(math.exp(logit) for logit in logits.values()))
        contrast.append(total - logits[max(grades, key=lambda doc_id: grades[doc_id])])
        of_list = dict(zip(texts, cosines[row], strict=True))
        of_pairs = [
            math.log(1 + math.exp(10 * (of_list[worse] - of_list[better])))
            for better in grades
            for worse in grades
            if grades[better] > grades[worse]
        ]
        pairs.append(sum(of_pairs) / len(of_pairs))
    expected = sum(contrast) / len(contrast) + 2 * sum(pairs) / len(pairs)
    assert objective.loss(model, batch).item() == pytest.approx(expected, rel=1e-4)


def test_gradients_reach_the_model_by_both_losses(model: ListEncoder, batch: dict[str, Tensor]) -> None:
    gradients = []
    for weight in (0.0, 2.0):
        model.zero_grad()
        E2RankObjective(ranknet, rank_weight=weight).loss(model, batch).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert all(bool(gradient.abs().max() > 0) for gradient in gradients)
    assert not torch.allclose(*gradients)
