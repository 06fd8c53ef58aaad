"""Trainable encoder: the vectors of serving, an adapter that is merged on saving, and a loss on scaled cosines."""

import math

import numpy as np
import pytest
import torch
from rerank_training.lists.training_list import TrainingList
from rerank_training.retriever.encoder import RetrieverCollator, RetrieverObjective, TrainableEncoder
from rerank_training.trainer.losses import kl
from torch import Tensor, nn

from rerank.config import EncoderConfig
from rerank.models.encoder import Encoder
from rerank.models.encoder_loading import Prompts
from rerank.types import Passage, Query
from tests.training.small_lists import a_list

TEXTS = ["a flea lives a year", "tides"]


def vectors(model: TrainableEncoder) -> torch.Tensor:
    tokens = model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    return model(tokens["input_ids"], tokens["attention_mask"])


def trained(encoder: Encoder, lora_rank: int) -> TrainableEncoder:
    """A model whose vectors differ clearly from the encoder's."""
    torch.manual_seed(0)
    model = TrainableEncoder(encoder, lora_rank)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    for _ in range(2):  # the first changes only half of the adapter, because the other half starts at zero
        optimizer.zero_grad()
        (vectors(model)[0] @ vectors(model)[1]).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_untrained_model_gives_the_vectors_of_the_encoder(encoder, lora_rank):
    """With the prompts that the collator writes."""
    settings = EncoderConfig(name=str(encoder.folder), query_prompt="query: ", document_prompt="passage: ")
    prompted = Encoder(settings, "cpu")
    model = TrainableEncoder(prompted, lora_rank).eval()
    passages = tuple(Passage(text, text) for text in TEXTS)
    batch = RetrieverCollator(model.tokenizer, 64, model.prompts)([TrainingList(Query(TEXTS[0]), passages, (1, 0))])
    expected = np.concatenate([prompted.encode_queries(TEXTS[:1]), prompted.encode_passages(TEXTS)])
    found = model(batch["input_ids"], batch["attention_mask"]).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_written_encoder_gives_the_vectors_that_were_trained(encoder, tmp_path, lora_rank):
    model = trained(encoder, lora_rank)
    expected = vectors(model).detach().numpy()
    model.save_pretrained(tmp_path / "written")
    written = Encoder(str(tmp_path / "written"), "cpu")
    np.testing.assert_allclose(written.encode_passages(TEXTS), expected, atol=1e-5)
    assert not np.allclose(expected, encoder.encode_passages(TEXTS), atol=1e-3)
    assert written.id.max_tokens == encoder.id.max_tokens


LISTS = [a_list("first", a=3, b=1), a_list("second query", b=2, c=5, d=1)]


class TwoAxes(nn.Module):
    """Text number i gets the unit vector at i times 30 degrees."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        angles = torch.arange(len(input_ids)) * math.pi / 6
        return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_passage_of_two_lists_is_encoded_once(encoder):
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16, Prompts())(LISTS)
    assert len(batch["input_ids"]) == 2 + 4
    assert batch["relevance"].tolist() == [[3, 1, 0, 0], [0, 2, 5, 1]]
    assert batch["mask"].tolist() == [[True, True, False, False], [False, True, True, True]]


def test_loss_reads_a_lists_own_passages_only(encoder):
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16, Prompts())(LISTS)
    objective = RetrieverObjective(kl)
    expected = kl(objective.scores(TwoAxes(), batch), batch["relevance"], batch["mask"])
    assert objective.terms(TwoAxes(), batch).sum().item() == pytest.approx(expected.item())
