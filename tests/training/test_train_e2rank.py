"""`train-e2rank` from its arguments to an encoder that retrieves and ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rerank_training.e2rank.arguments import E2RankArguments, E2RankRunFlags
from rerank_training.e2rank.training import train_e2rank
from rerank_training.trainer.arguments import RunArguments

from rerank.checkpoints.manifest import read_manifest
from rerank.config import E2RankModel
from rerank.config.named import named_model
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.reranking.load_models import E2RANK_END_TOKEN, load_ranker, with_path
from rerank.types import Query
from tests.small_encoder import write_qwen_model, write_small_encoder
from tests.training.pe_rank.pe_lists import write_training_lists

pytestmark = pytest.mark.slow


def trained(base: str, out: Path, lists: Path, steps: int = 12, **changed: object) -> Path:
    arguments = E2RankArguments(lists=str(lists), base=base, passage_tokens=64, **changed)  # type: ignore[arg-type]
    flags = E2RankRunFlags(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, save_steps=steps,
        use_cpu=True,
    )  # fmt: skip
    return train_e2rank(arguments, RunArguments(**vars(flags), logging_steps=1))


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_lists(tmp_path_factory.mktemp("lists") / "lists.jsonl", 8)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_result_states_how_it_encodes_and_ranks(
    tmp_path: Path, lists: Path, lora_rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_qwen_model(tmp_path / "base")
    base = f"{{name: {folder}, pooling: lasttoken, end_token: '{E2RANK_END_TOKEN}', query_prompt: 'find: '}}"
    final = trained(base, tmp_path / "run", lists, lora_rank=lora_rank, window_size=5, instruction="rank them")
    state = json.loads((tmp_path / "run" / "checkpoint-12" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    encoder, before = Encoder(str(final), "cpu"), Encoder(base, "cpu")
    assert (encoder.pooling, encoder.prompts) == ("lasttoken", ("find: ", ""))
    assert not np.allclose(encoder.encode_passages(["tides"]), before.encode_passages(["tides"]), atol=1e-3)
    assert named_model(f"a={final}") == {"name": "a", "ranker": "e2rank", "path": str(final)}
    ranker = load_ranker(with_path(E2RankModel(name="a", ranker="e2rank"), encoder), encoder, "cpu")
    assert ranker.info.needs_vectors
    assert ranker.prepare(Query("tides"), []).query.instruction == "rank them"
    assert f"--encoder {final}" in capsys.readouterr().out


def test_noise_on_the_embeddings_changes_the_training(tmp_path: Path, lists: Path) -> None:
    base = f"{{name: {write_qwen_model(tmp_path / 'base')}, pooling: lasttoken, end_token: '{E2RANK_END_TOKEN}'}}"
    arguments, losses = E2RankArguments(lists=str(lists), base=base, passage_tokens=64), list[float]()
    plain: dict[str, Any] = {"max_steps": 1, "save_steps": 1, "logging_steps": 1, "use_cpu": True, "report_to": "none"}
    for name, flags in (("plain", {}), ("noisy", {"neftune_noise_alpha": 5, "gradient_checkpointing": True})):
        train_e2rank(arguments, RunArguments(output_dir=str(tmp_path / name), **plain, **flags))
        state = json.loads((tmp_path / name / "checkpoint-1" / "trainer_state.json").read_text())
        losses.append(state["log_history"][0]["loss"])
    assert losses[0] != losses[1]


def test_further_training_keeps_window_size_and_instruction(tmp_path: Path, lists: Path) -> None:
    base = f"{{name: {write_qwen_model(tmp_path / 'base')}, pooling: lasttoken, end_token: '{E2RANK_END_TOKEN}'}}"
    first = trained(base, tmp_path / "first", lists, 1, window_size=3, instruction="rank them")
    manifest = read_manifest(trained(str(first), tmp_path / "second", lists, 1))
    assert manifest is not None
    assert (manifest.base, manifest.window_size, manifest.instruction) == (str(first), 3, "rank them")


def test_base_that_pools_other_states_is_refused(tmp_path: Path, lists: Path, encoder: Encoder) -> None:
    base = write_small_encoder(tmp_path / "mean", encoder).folder
    with pytest.raises(ConfigError, match="pools by mean, and E2Rank reads the state of the last token"):
        trained(str(base), tmp_path / "run", lists)
