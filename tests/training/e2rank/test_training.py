"""`train-e2rank`: the vectors of serving, losses as loops compute them, and an encoder that retrieves and ranks."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rerank_training.e2rank.arguments import E2RankArguments, E2RankRunFlags
from rerank_training.e2rank.training import E2RankCollator, E2RankObjective, ListEncoder, _prompts, train_e2rank
from rerank_training.retriever.encoder import RetrieverCollator
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.losses import ranknet
from torch import Tensor

from rerank.checkpoints.manifest import read_manifest
from rerank.config import E2RankModel, EncoderConfig
from rerank.config.models import E2RANK_INSTRUCTION
from rerank.config.named import named_model
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.reranking.load_models import E2RANK_END_TOKEN, load_ranker, with_path
from rerank.types import Query
from tests.fakes import ranking_of
from tests.small_encoder import write_qwen_model, write_small_encoder
from tests.training.small_lists import a_list, e2rank_base, logged_losses, write_training_lists

#: The passage b is in both.
LISTS = [a_list("first", a=3, b=1, c=0), a_list("second query", b=2, d=5)]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = write_qwen_model(tmp_path_factory.mktemp("models") / "base")
    prompts = {"query_prompt": "Instruct: find\nQuery:", "document_prompt": ""}
    return Encoder(EncoderConfig(name=str(folder), pooling="lasttoken", end_token=E2RANK_END_TOKEN, **prompts), "cpu")


@pytest.fixture(scope="module")
def model(qwen: Encoder) -> ListEncoder:
    return ListEncoder(qwen, lora_rank=0).eval()


@pytest.fixture(scope="module")
def batch(qwen: Encoder, model: ListEncoder) -> dict[str, Tensor]:
    arguments = E2RankArguments(lists="", base="", window_size=20)
    prompts = _prompts(qwen, arguments, E2RANK_INSTRUCTION)
    return E2RankCollator(RetrieverCollator(model.tokenizer, 64, model.prompts), prompts)(LISTS)


def test_scores_are_those_of_serving(qwen, model, batch):
    settings = E2RankModel(name="e2rank", ranker="e2rank", precision="float32")
    ranker = load_ranker(with_path(settings, qwen), qwen, "cpu")
    scores = E2RankObjective(ranknet).scores(model, batch)
    for row, item in enumerate(LISTS):
        served = ranking_of(ranker, item.query, item.passages)
        np.testing.assert_allclose(scores[row][batch["mask"][row]].numpy(), served.scores, atol=1e-5)


def test_loss_is_that_of_loops(qwen, model, batch):
    """InfoNCE over the distinct passages of both lists, plus twice RankNet over the pairs of each list."""
    objective = E2RankObjective(ranknet, rank_weight=2.0)
    texts = {passage.doc_id: passage.text for item in LISTS for passage in item.passages}
    vectors = dict(zip(texts, qwen.encode_passages(list(texts.values())), strict=True))
    cosines = objective.scores(model, batch).tolist()
    contrast, pairs = [], []
    for row, (item, query) in enumerate(zip(LISTS, qwen.encode_queries([i.query.text for i in LISTS]), strict=True)):
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
    assert objective.terms(model, batch).sum().item() == pytest.approx(expected, rel=1e-4)


def test_gradients_reach_the_model_by_both_losses(model, batch):
    gradients = []
    for weight in (0.0, 2.0):
        model.zero_grad()
        E2RankObjective(ranknet, rank_weight=weight).terms(model, batch).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert all(bool(gradient.abs().max() > 0) for gradient in gradients)
    assert not torch.allclose(*gradients)


def trained(base: str, out: Path, lists: Path, steps: int = 12, **changed: object) -> Path:
    arguments = E2RankArguments(lists=str(lists), base=base, passage_tokens=64, **changed)  # type: ignore[arg-type]
    given: dict[str, Any] = {"max_steps": steps, "per_device_train_batch_size": 4, "save_steps": steps, "use_cpu": True}
    flags = E2RankRunFlags(output_dir=str(out), learning_rate=1e-2, **given)
    return train_e2rank(arguments, RunArguments(**vars(flags), logging_steps=1))


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_lists(tmp_path_factory.mktemp("lists") / "lists.jsonl", 8)


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_result_states_how_it_encodes_and_ranks(tmp_path, lists, lora_rank, capsys):
    base = e2rank_base(tmp_path / "base", ", query_prompt: 'find: '")
    final = trained(base, tmp_path / "run", lists, lora_rank=lora_rank, window_size=5, instruction="rank them")
    losses = logged_losses(tmp_path / "run" / "checkpoint-12")
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    encoder, before = Encoder(str(final), "cpu"), Encoder(base, "cpu")
    assert (encoder.pooling, encoder.prompts) == ("lasttoken", ("find: ", ""))
    assert not np.allclose(encoder.encode_passages(["tides"]), before.encode_passages(["tides"]), atol=1e-3)
    assert named_model(f"a={final}") == {"name": "a", "ranker": "e2rank", "path": str(final)}
    ranker = load_ranker(with_path(E2RankModel(name="a", ranker="e2rank"), encoder), encoder, "cpu")
    assert ranker.info.needs_vectors
    assert ranker.prepare(Query("tides"), []).query.instruction == "rank them"
    assert f"--encoder {final}" in capsys.readouterr().out


@pytest.mark.slow
def test_further_training_keeps_window_size_and_instruction(tmp_path, lists):
    first = trained(
        e2rank_base(tmp_path / "base"), tmp_path / "first", lists, 1, window_size=3, instruction="rank them"
    )
    manifest = read_manifest(trained(str(first), tmp_path / "second", lists, 1))
    assert (manifest.base, manifest.window_size, manifest.instruction) == (str(first), 3, "rank them")


def test_base_that_pools_other_states_is_refused(tmp_path, lists, encoder):
    base = write_small_encoder(tmp_path / "mean", encoder).folder
    with pytest.raises(ConfigError, match="pools by mean, and E2Rank reads the state of the last token"):
        trained(str(base), tmp_path / "run", lists)
