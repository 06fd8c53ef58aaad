"""Command-line flags of the trainings."""

import logging
import re
import subprocess
import sys
from itertools import chain, product

import pytest
import torch
from rerank_training.commands import distill_retriever, train_e2rank, train_first, train_pe_rank
from rerank_training.first.arguments import FirstArguments
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import add_adapter
from rerank_training.trainer.losses import RANK_LOSSES
from transformers import LlamaConfig, LlamaForCausalLM, TrainerState
from typer.testing import CliRunner, Result

from rerank.commands.app import CommandApp
from rerank.errors import ConfigError
from tests.training.parsing import parse_arguments

REQUIRED = ["--lists", "l.jsonl", "--base", "b", "--output-dir", "out"]


def parsed(*flags: str, given: list[str] = REQUIRED) -> tuple[FirstArguments, RunArguments]:
    return parse_arguments(FirstArguments, *given, *flags)


def called(*flags: str, app: CommandApp = train_first.args[0]) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, flags)


@pytest.mark.parametrize("steps", [1, 8, 10, 25, 120, 400, 12_345])
def test_about_ten_saves_and_evaluations_by_default(steps):
    """At least one after every step of a short run."""
    state = TrainerState()
    state.compute_steps(parsed()[1], steps)
    for every in (state.save_steps, state.eval_steps):
        assert every == 1 if steps <= 10 else 5 <= steps / every <= 10
    assert state.logging_steps == -(-steps // 100)


@pytest.mark.parametrize(
    ("flags", "has_adapter", "rate"), [([], True, 5e-4), ([], False, 5e-5), (["--learning-rate", "3e-5"], True, 3e-5)]
)
def test_learning_rate_is_that_of_the_flag_or_of_what_is_trained(flags, has_adapter, rate):
    _, settings = parsed(*flags)
    settings.complete_learning_rate(has_adapter)
    assert settings.learning_rate == rate


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--windowsize", "3"], "No such option: --windowsize (Possible options: --min-window-size, --window-size)"),
        (["--window", "3"], "No such option: --window"),  # no abbreviation
        (["--learning-rate", "fast"], "Invalid value for '--learning-rate': expected a number"),
        (["--bf16", "maybe"], "Invalid value for '--bf16': expected true, false or no value, given 'maybe'"),
        (["--objective", "best"], "Invalid value for '--objective': 'best' is not one of 'lm', 'rank'"),
    ],
)
def test_wrong_flag_or_value_is_named(flags, message):
    result = called(*REQUIRED, *flags)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("command", [train_first, train_pe_rank, train_e2rank, distill_retriever])
def test_help_and_log_say_the_alpha_of_an_adapter(command, caplog):
    assert "LoRA adapter (alpha is 32)" in " ".join(called("--help", app=command.args[0]).output.split())
    with caplog.at_level(logging.INFO):
        config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=9)
        adapted = add_adapter(LlamaForCausalLM(config), 16)
    assert adapted.active_peft_config.lora_alpha == 32
    assert caplog.messages == ["LoRA: rank 16, alpha 32, scale 2"]


@pytest.mark.parametrize("command", [train_first, train_pe_rank, distill_retriever])
def test_unknown_loss_is_answered_with_all_names_before_anything_is_read(command, tmp_path):
    needed = ["--index", "none", "--queries", "none"] if command is distill_retriever else REQUIRED[:4]
    result = called(*needed, "--output-dir", str(tmp_path / "run"), "--rank-loss", "mse", app=command.args[0])
    assert str(result.exception) == f"--rank-loss 'mse' is not one of {', '.join(RANK_LOSSES)}"
    assert not (tmp_path / "run").exists()


def test_help_leaves_out_flags_of_transformers_that_few_runs_need():
    few, every = called("--help"), called("--help-all")
    assert (few.exit_code, every.exit_code) == (0, 0)
    for ours in ("--lists", "--save-steps", "--bf16", "--help-all"):
        assert ours in few.output
        assert ours in every.output
    assert "--adam-beta1" not in few.output
    assert "--adam-beta1" in every.output
    assert every.output.count("--save-total-limit") == 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("flags", [["--fsdp"], ["--fsdp", "true"]])
def test_fsdp_is_refused_on_a_cpu(flags):
    with pytest.raises(ConfigError, match="--fsdp needs several processes with a GPU each"):
        parsed(*flags)


def test_weights_of_an_encoder_are_not_left_out():
    _, settings = parsed()
    settings.check_loads_whole_models("distill-retriever")
    settings.fsdp_plugin_args = {"cpu_ram_efficient_loading": True}
    with pytest.raises(ConfigError, match="would leave empty in all but one; remove it"):
        settings.check_loads_whole_models("distill-retriever")


#: Runs the commands of the lines on standard input, one after the other, and says after each whether torch is there.
CALLS = """
import sys
from rerank_training import commands

for name, *words in map(str.split, sys.stdin):
    sys.argv = [name, *words]
    try:
        getattr(commands, name)()
    except SystemExit as ended:
        print(ended.code, "torch" in sys.modules)
"""


def test_file_that_is_not_there_is_named_before_torch_is_imported(tmp_path):
    (lists := tmp_path / "lists.jsonl").touch()
    flags = ("--lists", "--eval-lists", "--qrels")
    given = {"--lists": str(lists), "--base": "b", "--output-dir": str(tmp_path / "run")}
    calls = [
        [command, *chain.from_iterable((given | {flag: "none.jsonl"}).items())]
        for command, flag in product(("train_first", "train_pe_rank", "train_e2rank"), flags)
    ]
    lines = "\n".join(map(" ".join, calls))
    ended = subprocess.run([sys.executable, "-c", CALLS], input=lines, capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["2 False"] * len(calls), ended.stderr
    named = re.findall(r"error: (\S+): there is no file or folder none\.jsonl \(relative paths begin at", ended.stderr)
    assert named == [*flags] * 3
