"""Command-line flags and YAML files of the trainings."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rerank_training import distill_retriever, train_first, train_pe_rank
from rerank_training.first.arguments import FirstArguments
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.losses import RANK_LOSSES
from transformers import TrainerState
from typer.testing import CliRunner, Result

from rerank.commands.app import CommandApp
from rerank.errors import ConfigError
from tests.training.parsing import parse_arguments

REQUIRED = ["--lists", "l.jsonl", "--base", "b", "--output-dir", "out", "--report-to", "none"]


def parsed(*flags: str, given: list[str] = REQUIRED) -> tuple[FirstArguments, RunArguments]:
    return parse_arguments(FirstArguments, *given, *flags)


def called(*flags: str, app: CommandApp = train_first.app) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, flags)


def config(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_flags_with_underscores_are_the_same_flags() -> None:
    given = [flag.replace("-", "_").replace("__", "--", 1) for flag in REQUIRED]
    assert parsed("--min_window_size", "7", given=given) == parsed("--min-window-size", "7")


@pytest.mark.parametrize("steps", [1, 8, 10, 25, 120, 400, 12_345])
def test_about_ten_saves_and_evaluations_by_default(steps: int) -> None:
    """At least one after every step of a short run."""
    state = TrainerState()
    state.compute_steps(parsed()[1], steps)
    for every in (state.save_steps, state.eval_steps):
        assert every == 1 if steps <= 10 else 5 <= steps / every <= 10
    assert state.logging_steps == -(-steps // 100)


@pytest.mark.parametrize(
    ("flags", "has_adapter", "rate"), [([], True, 5e-4), ([], False, 5e-5), (["--learning-rate", "3e-5"], True, 3e-5)]
)
def test_learning_rate_is_that_of_the_flag_or_of_what_is_trained(
    flags: list[str], has_adapter: bool, rate: float
) -> None:
    _, settings = parsed(*flags)
    settings.complete_learning_rate(has_adapter)
    assert settings.learning_rate == rate


@pytest.mark.parametrize(
    "flags", ["--config {}", "--config={}", "--window_size 3 --config {}", "--config {} --window-size 3"]
)
def test_file_is_read_in_both_forms_of_the_flag_and_overridden_before_and_after_it(tmp_path: Path, flags: str) -> None:
    path = config(tmp_path, "window_size: 9\nlearning-rate: 3e-5")
    first, settings = parsed(*flags.format(path).split())
    assert (first.window_size, settings.learning_rate) == (3 if "3" in flags else 9, 3e-5)


def test_yaml_values_of_all_kinds_are_read(tmp_path: Path) -> None:
    text = """
        gradient_checkpointing: true
        include_num_input_tokens_seen: false
        report_to: [none]
        eval_lists: null
        weight_decay: -0.5
        base: -odd-name
        lr_scheduler_kwargs: {num_cycles: 0.25}
    """
    first, settings = parsed("--config", config(tmp_path, text), given=[*REQUIRED[:2], *REQUIRED[4:6]])
    assert settings.gradient_checkpointing is True
    assert settings.include_num_input_tokens_seen == "no"
    assert settings.report_to == []
    assert first.eval_lists is None
    assert (settings.weight_decay, first.base) == (-0.5, "-odd-name")
    assert settings.lr_scheduler_kwargs == {"num_cycles": 0.25}


def test_flags_of_both_parsers_may_be_mixed() -> None:
    flags = '--use-cpu --lr-scheduler-kwargs={"num_cycles":0.25} --adam-beta1 0.8 --seed=3 --objective lm --bf16 false'
    first, settings = parsed(*flags.split())
    assert (settings.use_cpu, settings.bf16, settings.lr_scheduler_kwargs) == (True, False, {"num_cycles": 0.25})
    assert (settings.adam_beta1, settings.seed, first.lists, first.objective) == (0.8, 3, "l.jsonl", "lm")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--windowsize", "3"], "--windowsize is not a flag of this command; did you mean --window-size? see --help"),
        (["--window", "3"], "--window is not a flag"),  # no abbreviation
        (["--adam_beta", "3"], "--adam-beta is not a flag of this command; did you mean --adam-beta[12]?"),
        (["--seed", "3", "stray"], "stray is not a flag"),
        (["--bf16", "perhaps"], "--bf16 perhaps: neither true nor false"),
        (["--lr-scheduler-type", "sinus"], ".*sinus"),
        (["--report-to", "tensorboard", "paper"], "--report-to tensorboard paper"),
        (["--adam-beta1", "much"], ".*much"),
    ],
)
def test_wrong_flag_or_value_is_named(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message.replace('?', '[?]')}"):
        parsed(*flags)
    with pytest.raises(ConfigError, match=r"^-x is not a flag"):
        parsed(given=["-x", *REQUIRED])


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--learning-rate", "fast", "valid number"),
        ("--objective", "best", "not one of 'lm', 'rank', 'joint'"),
    ],
)
def test_flag_with_a_value_of_another_type_is_named(flag: str, value: str, reason: str) -> None:
    result = called(*REQUIRED, flag, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}'" in result.output
    assert reason in result.output


@pytest.mark.parametrize("app", [train_first.app, train_pe_rank.app, distill_retriever.app])
def test_unknown_loss_is_answered_with_all_names_before_anything_is_read(app: CommandApp, tmp_path: Path) -> None:
    needed = ["--index", "none", "--queries", "none"] if app is distill_retriever.app else REQUIRED[:4]
    result = called(*needed, "--output-dir", str(tmp_path / "run"), "--rank-loss", "mse", app=app)
    assert str(result.exception) == f"--rank-loss 'mse' is not one of {', '.join(RANK_LOSSES)}"
    assert not (tmp_path / "run").exists()


def test_file_may_hold_all_required_arguments_or_nothing(tmp_path: Path) -> None:
    text = "".join(f"{flag[2:]}: {value}\n" for flag, value in zip(REQUIRED[::2], REQUIRED[1::2], strict=True))
    assert parsed("--config", config(tmp_path, text), given=[])[0] == parsed()[0]
    assert parsed("--config", config(tmp_path, ""))[0] == parsed()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windowsize: 3", "^--windowsize is not a flag of this command"),
        ("config: 3", "^--config is not a flag of this command"),
        *((text, r"run\.yaml") for text in ("[1, 2]", "just words", "a: [1", "\0")),
    ],
)
def test_file_with_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed("--config", config(tmp_path, text))
    with pytest.raises(ConfigError, match="No such file"):
        parsed("--config", str(tmp_path / "none.yaml"))


def test_help_leaves_out_flags_of_transformers_that_few_runs_need() -> None:
    few, every = called("--help"), called("--help-all")
    assert (few.exit_code, every.exit_code) == (0, 0)
    for ours in ("--lists", "--save-steps", "--bf16", "--help-all", "--config FILE"):
        assert ours in few.output
        assert ours in every.output
    assert "--adam-beta1" not in few.output
    assert "--adam-beta1" in every.output
    assert every.output.count("--save-total-limit") == 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("flags", [["--fsdp"], ["--fsdp", "true"]])
def test_fsdp_is_refused_on_a_cpu(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match="--fsdp needs GPUs"):
        parsed(*flags)


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="deepspeed is installed")
def test_deepspeed_names_its_package() -> None:
    with pytest.raises(ConfigError, match="the package deepspeed is not installed; install it, or use --fsdp"):
        parsed("--deepspeed", "zero3.json")


@pytest.mark.parametrize("setting", ["fsdp", "deepspeed"])
def test_command_that_cannot_write_a_divided_model_says_so(setting: str) -> None:
    _, settings = parsed()
    settings.check_not_sharded("train-pe-rank")
    setattr(settings, setting, True)
    with pytest.raises(ConfigError, match="train-pe-rank does not write a model that --fsdp or --deepspeed divides"):
        settings.check_not_sharded("train-pe-rank")
