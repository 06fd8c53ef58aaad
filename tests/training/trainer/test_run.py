"""Training runs that are killed, refused, or out of disk space: the files on disk, and how they are resumed."""

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rerank_training.commands import train_first
from rerank_training.first.objective import FirstObjective
from rerank_training.retriever.arguments import RetrieverArguments
from rerank_training.trainer.ranking_trainer import COMPLETE_MARKER
from rerank_training.trainer.run import ProgressLineCallback, check_same_run, last_save
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerState
from typer.testing import CliRunner

from rerank.errors import CheckpointError, ConfigError
from rerank.util.files import synced_sizes
from rerank.util.json_files import write_synced
from tests.full_disk import largest_file
from tests.word_lists import first_flags, first_run, write_inputs

pytestmark = pytest.mark.slow

#: Three passes of 10 windows: 8 steps of 4 windows, the last with two of a fourth pass; noise that depends on the seed.
FLAGS = shlex.split(
    "--num-train-epochs 3 --per-device-train-batch-size 2 --gradient-accumulation-steps 2 --save-steps 3 "
    "--learning-rate 1e-3 --neftune-noise-alpha 5 --min-window-size 2"
)
N_LISTS, BATCHES = 10, 16


class Killed(Exception):
    """Acts as the end of the process; no code of ours catches it."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), N_LISTS)


@pytest.fixture(scope="module")
def uninterrupted(inputs: Path) -> dict[str, torch.Tensor]:
    return load_file(first_run(inputs, inputs / "uninterrupted", *FLAGS) / "model.safetensors")


@pytest.fixture(scope="module")
def killed(inputs: Path) -> Path:
    """The folder of a run that was killed within the step after its first save."""
    with killed_at_batch(7), pytest.raises(Killed):
        first_run(inputs, inputs / "killed", *FLAGS)
    return inputs / "killed"


@contextmanager
def killed_at_batch(batch: int, end: type[BaseException] = Killed) -> Iterator[list[int]]:
    """Ends the run when it computes the loss of this batch (-1: never); yields the sizes of the batches before."""
    seen: list[int] = []
    original = FirstObjective.terms

    def terms(self: FirstObjective, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if len(seen) == batch:
            raise end
        seen.append(len(inputs["mask"]))
        return original(self, model, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FirstObjective, "terms", terms)
        yield seen


def assert_same_weights(result: Path, expected: dict[str, torch.Tensor]) -> None:
    """Bitwise."""
    found = load_file(result / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def saves(run: Path) -> dict[int, bool]:
    """RankStage → True if the save is complete."""
    return {int(path.name.split("-")[1]): (path / COMPLETE_MARKER).is_file() for path in run.glob("checkpoint-*")}


# --- killed


def test_run_killed_between_saves_ends_with_the_same_weights(inputs, killed, uninterrupted, tmp_path):
    with killed_at_batch(-1) as seen:
        result = first_run(inputs, shutil.copytree(killed, tmp_path / "run"), *FLAGS)
    assert len(seen) == BATCHES - 6
    assert_same_weights(result, uninterrupted)


def test_run_that_ctrl_c_stopped_resumes(inputs, tmp_path):
    flags = [*first_flags(inputs, tmp_path / "run", *FLAGS)]
    with killed_at_batch(7, KeyboardInterrupt):
        outcome = CliRunner().invoke(train_first.args[0], flags)
    assert outcome.exit_code == 130
    outcome = CliRunner().invoke(train_first.args[0], flags)
    assert outcome.exit_code == 0, outcome.output
    assert "resuming at step 3 of 8" in outcome.output


def test_run_killed_while_it_saves_resumes_from_the_save_before(inputs, uninterrupted, tmp_path):
    """With --save-total-limit 1, the first save is removed only after the second one is complete."""
    flags = [*FLAGS, "--save-total-limit", "1"]
    with pytest.MonkeyPatch.context() as patch:

        def unmarked(folder: Path) -> dict[str, int]:
            if folder.name == "checkpoint-6":
                raise Killed
            return synced_sizes(folder)

        patch.setattr("rerank_training.trainer.ranking_trainer.synced_sizes", unmarked)
        with pytest.raises(Killed):
            first_run(inputs, tmp_path / "run", *flags)
    assert saves(tmp_path / "run") == {3: True, 6: False}
    with killed_at_batch(-1) as seen:
        result = first_run(inputs, tmp_path / "run", *flags)
    assert len(seen) == BATCHES - 6
    assert_same_weights(result, uninterrupted)
    assert saves(tmp_path / "run") == {8: True}


def test_run_whose_newest_save_a_power_loss_cut_resumes_from_the_one_before(inputs, uninterrupted, tmp_path, caplog):
    run, flags = tmp_path / "run", [*FLAGS, "--save-total-limit", "2"]
    with killed_at_batch(13), pytest.raises(Killed):
        first_run(inputs, run, *flags)
    names = sorted(path.name for path in (run / "checkpoint-6").iterdir())
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", COMPLETE_MARKER} <= set(names)
    for name in names:
        for bytes_left in (0, (run / "checkpoint-6" / name).stat().st_size // 2, None):
            copy = Path(shutil.copytree(run, tmp_path / "copy"))
            if bytes_left is None:
                (copy / "checkpoint-6" / name).unlink()
            else:
                os.truncate(copy / "checkpoint-6" / name, bytes_left)
            assert last_save(copy) == str(copy / "checkpoint-3")
            shutil.rmtree(copy)
    caplog.clear()
    os.truncate(run / "checkpoint-6" / "optimizer.pt", 0)
    os.truncate(run / "arguments.json", 0)
    with killed_at_batch(-1) as seen:
        result = first_run(inputs, run, *flags)
    assert len(seen) == BATCHES - 6
    assert_same_weights(result, uninterrupted)
    assert "optimizer.pt has 0 of " in caplog.text
    assert "arguments.json cannot be read: the arguments are not compared" in caplog.text


# --- refused


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--window-size", "3", "(--window-size 4, now 3)"),
        ("--num-train-epochs", "4", "(--num-train-epochs 3.0, now 4.0)"),
        ("--seed", "1", "(--seed 42, now 1)"),
    ],
)
def test_run_with_other_arguments_is_not_resumed(inputs, killed, flag, value, message):
    with pytest.raises(ConfigError) as refused:
        first_run(inputs, killed, *FLAGS, flag, value)
    assert message in str(refused.value)


def test_run_with_another_number_of_processes_is_not_resumed(tmp_path):
    check_same_run(tmp_path, [], started=False)
    assert json.loads((tmp_path / "arguments.json").read_text(encoding="utf-8")) == {"num_processes": "1"}
    (tmp_path / "arguments.json").write_text('{"num_processes": "2"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\(--num-processes 2, now 1\); give the same arguments"):
        check_same_run(tmp_path, [], started=True)


@pytest.mark.parametrize(("step", "steps"), [(9, None), (-1, None), ("3", None), (3, 2)])
def test_run_is_not_resumed_from_a_save_beyond_its_last_step(inputs, killed, tmp_path, step, steps):
    """It "trained" no step, and gave the weights of the save as the run's."""
    shutil.copytree(killed, run := tmp_path / "run")
    path = run / "checkpoint-3" / "trainer_state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(state | {"global_step": step}, indent=1), encoding="utf-8")
    write_synced(run / "checkpoint-3" / COMPLETE_MARKER, synced_sizes(run / "checkpoint-3"))
    length = [] if steps is None else ["--max-steps", str(steps)]
    with pytest.raises(ConfigError, match=f"is of step {step}, and the run has {steps or 8} steps; give a larger"):
        first_run(inputs, run, *FLAGS, *length)


def test_run_is_not_resumed_with_other_contents_of_its_files(inputs, tmp_path):
    shutil.copytree(inputs, own := tmp_path / "own")
    flags = [*FLAGS, "--eval-lists", str(own / "held-out.jsonl"), "--eval-steps", "3"]
    with killed_at_batch(7), pytest.raises(Killed):
        first_run(own, tmp_path / "run", *flags)
    for name in ("lists.jsonl", "held-out.jsonl"):
        lines = (own / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (own / name).write_text("".join(lines[1:]), encoding="utf-8")
    weights = load_file(own / "base" / "model.safetensors")
    weights["lm_head.weight"] += 1e-3
    save_file(weights, own / "base" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError) as refused:
        first_run(own, tmp_path / "run", *flags)
    changed = re.findall(r"(--\S+) has other contents than at the start: SHA-256 \w+, now \w+", str(refused.value))
    assert changed == ["--base", "--eval-lists", "--lists"]


def test_distillation_is_not_resumed_with_other_queries_or_another_index(tmp_path):
    """The report of a resumed run names the hashes of the files as they are at its end."""
    for folder, name in (("data", "queries.jsonl"), ("index", "manifest.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("1")
    arguments = RetrieverArguments(index=str(tmp_path / "index"), queries=str(tmp_path / "data"))
    check_same_run(tmp_path, [arguments], started=False)
    check_same_run(tmp_path, [arguments], started=True)
    for flag, file in (("--queries", "data/queries.jsonl"), ("--index", "index/manifest.json")):
        (tmp_path / file).write_text("2")
        with pytest.raises(ConfigError, match=f"{flag} has other contents than at the start"):
            check_same_run(tmp_path, [arguments], started=True)
        (tmp_path / file).write_text("1")


def test_resumed_run_says_so_and_may_log_differently_and_take_more_steps(inputs, killed, tmp_path, capsys, caplog):
    shutil.copytree(killed, run := tmp_path / "run")
    with killed_at_batch(-1) as seen:
        first_run(inputs, run, *FLAGS, "--max-steps", "5", "--logging-steps", "1", "--save-steps", "1")
    printed = capsys.readouterr().out
    assert "resuming at step 3 of 5\n" in printed
    assert "step      4/5  loss" in printed
    assert len(seen) == 4
    assert "--max-steps is 5 and was -1 at the start" in caplog.text


def test_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(ConfigError, match=r"thesis exists and is not the folder of a run: .*but chapter\.tex; choose"):
        first_run(tmp_path / "no inputs", tmp_path / "thesis")
    with pytest.raises(ConfigError, match=r"chapter\.tex is a file; choose another --output-dir"):
        first_run(tmp_path / "no inputs", tmp_path / "thesis" / "chapter.tex")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_finished_run_is_refused_before_anything_is_loaded(tmp_path):
    (tmp_path / "run" / "final").mkdir(parents=True)
    with pytest.raises(ConfigError, match="final exists: that run is finished; choose another --output-dir"):
        first_run(tmp_path / "no inputs", tmp_path / "run")


def test_save_without_a_weight_is_refused_unless_another_one_is_tied_to_it(inputs, tmp_path):
    """The best save is loaded at the end, and the newest one when a run is resumed."""
    config = AutoConfig.from_pretrained(inputs / "base", tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tied")
    for path in (inputs / "base").glob("tokenizer*"):
        shutil.copy(path, tmp_path / "tied")
    held_out = ["--eval-lists", str(inputs / "held-out.jsonl"), "--eval-steps", "3"]
    flags = [*FLAGS, "--base", str(tmp_path / "tied"), *held_out]
    with killed_at_batch(7), pytest.raises(Killed):
        first_run(inputs, tmp_path / "run", *flags)
    shutil.copytree(tmp_path / "run", tmp_path / "damaged")
    weights = load_file(newest := tmp_path / "damaged" / "checkpoint-3" / "model.safetensors")
    assert "lm_head.weight" not in weights
    first_run(inputs, tmp_path / "run", *flags)
    del weights["model.norm.weight"]
    save_file(weights, newest, metadata={"format": "pt"})
    (newest.parent / COMPLETE_MARKER).unlink()
    write_synced(newest.parent / COMPLETE_MARKER, synced_sizes(newest.parent))
    with pytest.raises(CheckpointError, match=r"weights without model\.norm\.weight; remove the newest checkpoint-\*"):
        first_run(inputs, tmp_path / "damaged", *flags)


# --- no disk space


@pytest.mark.parametrize("part", ["_save_optimizer_and_scheduler", "_save"], ids=["torch", "safetensors"])
def test_full_disk_names_the_way_out_and_keeps_the_last_complete_save(inputs, tmp_path, monkeypatch, part):
    original = getattr(Trainer, part)

    def save(self: Trainer, folder: str, *more: Any, **options: Any) -> None:
        if not folder.endswith("-6"):
            return original(self, folder, *more, **options)
        with largest_file(1000):
            return original(self, folder, *more, **options)

    monkeypatch.setattr(Trainer, part, save)
    with pytest.raises(ConfigError) as refused:
        first_run(inputs, tmp_path / "run", *FLAGS)
    assert "checkpoint-6 cannot be written" in str(refused.value)
    assert "free disk space and give the same command again" in str(refused.value)
    assert saves(tmp_path / "run") == {3: True, 6: False}


def test_full_disk_after_the_last_step_leaves_no_partial_result_and_costs_no_step(inputs, tmp_path):
    def out_of_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run, flags = tmp_path / "run", [*FLAGS, "--max-steps=4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rerank_training.trainer.checkpoint.write_manifest", out_of_space)
        with pytest.raises(ConfigError, match=r"final cannot be written.*free disk space"):
            first_run(inputs, run, *flags)
    assert not [path for path in run.iterdir() if "final" in path.name]
    with killed_at_batch(0):
        result = first_run(inputs, run, *flags)
    assert_same_weights(result, load_file(run / "checkpoint-4" / "model.safetensors"))


# --- steps, passes and saves


def test_accumulated_batches_are_the_step_of_one_large_batch(inputs, tmp_path):
    flags = shlex.split("--objective rank --max-steps 1 --learning-rate 1e-2 --optim sgd --max-grad-norm 0")
    small = shlex.split("--per-device-train-batch-size 2 --gradient-accumulation-steps 4")
    large = shlex.split("--per-device-train-batch-size 8")
    found, expected = (
        load_file(first_run(inputs, tmp_path / name, *flags, *batches) / "model.safetensors")
        for name, batches in (("small", small), ("large", large))
    )
    base = load_file(inputs / "base" / "model.safetensors")
    assert any((expected[name] - base[name]).abs().max() > 1e-4 for name in expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-4)


def test_best_evaluation_is_saved_even_between_saves_and_named_in_the_summary(inputs, tmp_path, capsys):
    """Held-out nDCG is best at step 2 of 6; saves are requested at step 4 only."""
    means = iter([0.1, 0.2, 0.9, 0.3, 0.4, 0.1, 0.5])
    flags = shlex.split(
        "--per-device-train-batch-size 2 --max-steps 6 --eval-steps 1 --save-steps 4 --learning-rate 1e-3"
    )
    with pytest.MonkeyPatch.context() as patch:
        values = "rerank_training.trainer.ranking_trainer.RankingTrainer.held_out_values"
        patch.setattr(values, lambda *_: [0.0, 2 * next(means)])
        result = first_run(inputs, tmp_path / "run", *flags, "--eval-lists", str(inputs / "held-out.jsonl"))
    assert saves(tmp_path / "run") == {2: True, 6: True}
    assert_same_weights(result, load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors"))
    metrics = json.loads((result / "rerank.json").read_text(encoding="utf-8"))["metrics"]
    assert metrics == {"nDCG@10": pytest.approx(0.9)}
    printed = capsys.readouterr().out
    assert [line[:26] for line in printed.splitlines() if "6/6  nDCG" in line] == ["step      6/6  nDCG@10 0.5"]
    assert printed.endswith(
        "\nbest step: 2 of 6\n"
        "nDCG@10 within the passages of 2 held-out lists: 0.1000 before the training, 0.9000 after; p = 0.5, "
        "so the difference may be chance\n"
        f"model: {result}\nserve it: rerank serve --model default={result}\n"
        "gain: not shown, as +0.8000 nDCG@10 against the weights at the start may be chance (p = 0.5); "
        "kept: the weights of step 2\n"
    )


@pytest.mark.parametrize(("device", "steps", "says"), [("cpu", 900, True), ("cpu", 3, False), ("cuda", 900, False)])
def test_training_on_a_cpu_says_after_its_first_steps_how_long_the_others_take(
    device, steps, says, capsys, monkeypatch
):
    times = iter([100.0, 112.0])
    monkeypatch.setattr("rerank_training.trainer.run.time.monotonic", lambda: next(times, 112.0))
    line, state = ProgressLineCallback(), TrainerState(max_steps=steps)
    arguments = SimpleNamespace(device=torch.device(device))
    line.on_train_begin(arguments, state, None)
    for state.global_step in range(1, 5):
        line.on_step_end(arguments, state, None)
    expected = f"3 steps took 12.0 s on this CPU: the other {steps - 3} take about 0:59:48, without evaluations; "
    assert (expected in capsys.readouterr().out) is says
