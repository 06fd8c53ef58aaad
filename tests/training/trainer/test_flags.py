"""Command-line flags and YAML files of the trainings."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rerank_training.first.arguments import FirstArguments
from rerank_training.retriever.arguments import RetrieverRunFlags
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.flags import RunFlags, parse_arguments
from transformers import TrainerState, TrainingArguments

from rerank.errors import ConfigError

REQUIRED = ["--lists", "l.jsonl", "--base", "b", "--output-dir", "out", "--report-to", "none"]


def parsed(*flags: str, given: list[str] = REQUIRED) -> tuple[FirstArguments, RunArguments]:
    first, settings = parse_arguments(FirstArguments, flags=[*given, *flags])
    return first, settings


def config(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_flags_are_read_by_their_types() -> None:
    first, settings = parsed("--window-size", "7", "--learning-rate", "1e-4", "--objective", "lm")
    assert (first.window_size, settings.learning_rate, first.objective) == (7, 1e-4, "lm")


def test_flags_with_underscores_are_the_same_flags() -> None:
    given = [flag.replace("-", "_").replace("__", "--", 1) for flag in REQUIRED]
    assert parsed("--min_window_size", "7", given=given) == parsed("--min-window-size", "7")


def test_defaults_are_those_of_the_project() -> None:
    first, settings = parsed()
    assert (first.objective, first.window_size, settings.per_device_train_batch_size) == ("joint", 0, 4)
    assert settings.lr_scheduler_type == "cosine"
    assert not settings.remove_unused_columns


@pytest.mark.parametrize("steps", [1, 8, 10, 25, 120, 400, 12_345])
def test_about_ten_saves_and_evaluations_by_default(steps: int) -> None:
    """At least one after every step of a short run."""
    state = TrainerState()
    state.compute_steps(parsed()[1], steps)
    for every in (state.save_steps, state.eval_steps):
        assert every == 1 if steps <= 10 else 5 <= steps / every <= 10
    assert state.logging_steps == -(-steps // 100)


def test_steps_that_are_given_are_kept() -> None:
    state = TrainerState()
    state.compute_steps(parsed("--save-steps", "50", "--eval-steps", "25", "--logging-steps", "7")[1], 1000)
    assert (state.save_steps, state.eval_steps, state.logging_steps) == (50, 25, 7)


@pytest.mark.parametrize(
    ("flags", "has_adapter", "rate"), [([], True, 5e-4), ([], False, 5e-5), (["--learning-rate", "3e-5"], True, 3e-5)]
)
def test_learning_rate_is_that_of_the_flag_or_of_what_is_trained(
    flags: list[str], has_adapter: bool, rate: float
) -> None:
    _, settings = parsed(*flags)
    settings.complete_learning_rate(has_adapter)
    assert settings.learning_rate == rate


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"]])
def test_file_is_read_in_both_forms_of_the_flag(tmp_path: Path, form: list[str]) -> None:
    path = config(tmp_path, "window_size: 9\nlearning-rate: 3e-5")
    first, settings = parsed(*(part.format(path) for part in form))
    assert (first.window_size, settings.learning_rate) == (9, 3e-5)


def test_flag_overrides_the_file_before_and_after_it(tmp_path: Path) -> None:
    path = config(tmp_path, "window_size: 9\nseed: 5")
    for flags in (["--window-size", "3", "--config", path], ["--config", path, "--window-size", "3"]):
        first, settings = parsed(*flags)
        assert (first.window_size, settings.seed) == (3, 5)


def test_file_may_hold_all_required_arguments(tmp_path: Path) -> None:
    path = config(tmp_path, "lists: a.jsonl\nbase: b\noutput_dir: out\nreport_to: none")
    first, settings = parsed("--config", path, given=[])
    assert (first.lists, settings.output_dir) == ("a.jsonl", "out")


def test_yaml_values_of_all_kinds_are_read(tmp_path: Path) -> None:
    text = """
        inverse_propensity: true
        include_num_input_tokens_seen: false
        report_to: [none]
        eval_lists: null
        weight_decay: -0.5
        base: -odd-name
        lr_scheduler_kwargs: {num_cycles: 0.25}
    """
    first, settings = parsed("--config", config(tmp_path, text), given=[*REQUIRED[:2], *REQUIRED[4:6]])
    assert first.inverse_propensity is True
    assert settings.include_num_input_tokens_seen == "no"
    assert settings.report_to == []
    assert first.eval_lists is None
    assert (settings.weight_decay, first.base) == (-0.5, "-odd-name")
    assert settings.lr_scheduler_kwargs == {"num_cycles": 0.25}


def test_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert parsed("--config", config(tmp_path, ""))[0] == parsed()[0]


def test_unknown_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--windowsize is not a flag of this command"):
        parsed("--windowsize", "3")


def test_flags_cannot_be_abbreviated() -> None:
    with pytest.raises(ConfigError, match=r"^--window is not a flag"):
        parsed("--window", "3")


@pytest.mark.parametrize("key", ["windowsize", "config"])
def test_unknown_key_of_the_file_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--{key} is not a flag of this command"):
        parsed("--config", config(tmp_path, f"{key}: 3"))


@pytest.mark.parametrize("missing", [0, 2, 4])
def test_missing_argument_is_named(missing: int) -> None:
    with pytest.raises(ConfigError, match=f"required: {REQUIRED[missing]}"):
        parsed(given=REQUIRED[:missing] + REQUIRED[missing + 2 :])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--learning-rate", "fast"),
        ("--objective", "best"),
        ("--inverse-propensity", "perhaps"),
        ("--lr-scheduler-type", "sinus"),
        ("--report-to", "paper"),
    ],
)
def test_invalid_value_is_named(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value):
        parsed(flag, value)


@pytest.mark.parametrize("text", ["[1, 2]", "just words", "a: [1", "\0"])
def test_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        parsed("--config", config(tmp_path, text))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        parsed("--config", str(tmp_path / "none.yaml"))


def test_help_shows_flags_with_hyphens(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--help")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--config FILE" in shown
    assert "--inverse-propensity" in shown
    assert "--inverse_propensity" not in shown


def test_help_leaves_out_flags_of_transformers_that_few_runs_need(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parsed(flag)
        shown[flag] = capsys.readouterr().out
    for ours in ("--lists", "--save-steps", "--max-steps", "--help-all"):
        assert ours in shown["--help"]
    assert "--adam-beta1" not in shown["--help"]
    assert "--adam-beta1" in shown["--help-all"]
    assert parsed("--adam-beta1", "0.8")[1].adam_beta1 == 0.8


def test_warm_up_is_a_share_of_the_steps_by_default() -> None:
    assert parsed()[1].get_warmup_steps(400) == 40


def test_reports_go_to_tensorboard_by_default() -> None:
    assert parsed(given=REQUIRED[:6])[1].report_to == ["tensorboard"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory is pinned with a GPU")
def test_memory_is_not_pinned_without_a_gpu() -> None:
    assert not parsed()[1].dataloader_pin_memory


def test_run_flags_are_arguments_of_transformers() -> None:
    """Those that the project does not change have the default of transformers."""
    changed = {
        *("output_dir", "learning_rate", "lr_scheduler_type", "warmup_steps", "per_device_train_batch_size"),
        *("logging_steps", "include_num_input_tokens_seen", "report_to", "eval_steps", "save_steps"),
        "save_total_limit",
    }
    theirs = {setting.name: setting.default for setting in dataclasses.fields(TrainingArguments)}
    ours = {setting.name: setting.default for setting in dataclasses.fields(RunFlags)}
    assert ours.keys() <= theirs.keys()
    unchanged = ours.keys() - changed
    assert {name: ours[name] for name in unchanged} == {name: theirs[name] for name in unchanged}


def test_command_can_have_defaults_of_its_own() -> None:
    _, settings = parse_arguments(FirstArguments, RetrieverRunFlags, flags=REQUIRED)
    assert (settings.per_device_train_batch_size, settings.ddp_timeout, settings.save_steps) == (8, 604_800, 0.1)


def test_flags_of_both_parsers_may_be_mixed() -> None:
    first, settings = parsed(
        "--use-cpu", '--lr-scheduler-kwargs={"num_cycles": 0.25}', "--adam-beta1", "0.8", "--seed=3"
    )
    assert (settings.use_cpu, settings.lr_scheduler_kwargs) == (True, {"num_cycles": 0.25})
    assert (settings.adam_beta1, settings.seed, first.lists) == (0.8, 3, "l.jsonl")


@pytest.mark.parametrize("text", ["stray", "-x"])
def test_text_without_a_flag_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{text} is not a flag"):
        parsed(given=[text, *REQUIRED])


@pytest.mark.parametrize("command", ["train_first", "train_pe_rank", "distill_retriever"])
@pytest.mark.parametrize(("flag", "code"), [("--help", 0), ("--seed=x", 2)])
def test_help_and_wrong_flags_import_no_heavy_library(command: str, flag: str, code: int) -> None:
    program = (
        "import sys\n"
        f"from rerank_training.{command} import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, flag], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert ("--save-steps" in done.stdout) == (flag == "--help")
    assert not {"torch", "transformers"} & set(done.stderr.split())


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
