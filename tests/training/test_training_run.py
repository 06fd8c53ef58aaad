"""A run that is killed, refused, or out of room: what is on disk afterwards, and how it goes on."""

from __future__ import annotations

import errno
import json
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rerank_training.first_objective import FirstObjective
from rerank_training.run import last_save, result_folder
from rerank_training.trainer import SAVED_WHOLE
from safetensors.torch import load_file
from transformers import Trainer

from rerank.errors import ConfigError
from tests.word_lists import first_flags, first_run, write_inputs

#: 30 windows in 15 batches, so 8 steps of which the last has one batch; three passes; noise that the seed decides.
FLAGS = shlex.split(
    "--num_train_epochs 3 --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --save_steps 3 "
    "--learning_rate 1e-3 --neftune_noise_alpha 5 --min_window_size 2"
)
N_LISTS, BATCHES = 10, 15


class Killed(Exception):
    """Stands for the end of the process; nothing in between catches it."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), N_LISTS)


@pytest.fixture(scope="module")
def uninterrupted(inputs: Path) -> dict[str, torch.Tensor]:
    return load_file(first_run(inputs, inputs / "whole", *FLAGS) / "model.safetensors")


@contextmanager
def killed_at_batch(batch: int) -> Iterator[list[int]]:
    """Ends the run when it computes this batch's loss; yields the sizes of the batches that it saw."""
    seen: list[int] = []
    original = FirstObjective.loss

    def loss(self: FirstObjective, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if len(seen) == batch:
            raise Killed
        seen.append(len(inputs["mask"]))
        return original(self, model, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FirstObjective, "loss", loss)
        yield seen


def assert_same_weights(result: Path, expected: dict[str, torch.Tensor]) -> None:
    """To the bit."""
    found = load_file(result / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def saves(run: Path) -> dict[int, bool]:
    """Step → whether the save is whole."""
    return {int(path.name.split("-")[1]): (path / SAVED_WHOLE).is_file() for path in run.glob("checkpoint-*")}


# --- killed


@pytest.mark.parametrize("batch", [1, 7, 11])
def test_run_killed_between_saves_ends_with_the_same_weights(
    inputs: Path, uninterrupted: dict[str, torch.Tensor], tmp_path: Path, batch: int
) -> None:
    """Before the first save, behind it, and in the middle of a step; the rest of the batches is seen once."""
    with killed_at_batch(batch), pytest.raises(Killed):
        first_run(inputs, tmp_path / "run", *FLAGS)
    with killed_at_batch(-1) as seen:
        result = first_run(inputs, tmp_path / "run", *FLAGS)
    assert len(seen) == BATCHES - 2 * (batch // 6 * 3)
    assert_same_weights(result, uninterrupted)


def test_save_that_is_not_whole_is_removed_and_the_one_before_goes_on(
    inputs: Path, uninterrupted: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with killed_at_batch(13), pytest.raises(Killed):
        first_run(inputs, tmp_path / "run", *FLAGS)
    assert saves(tmp_path / "run") == {3: True, 6: True}
    (tmp_path / "run" / "checkpoint-6" / SAVED_WHOLE).unlink()
    (tmp_path / "run" / "checkpoint-6" / "model.safetensors").write_bytes(b"half")
    with killed_at_batch(-1) as seen:
        result = first_run(inputs, tmp_path / "run", *FLAGS)
    assert len(seen) == BATCHES - 6
    assert_same_weights(result, uninterrupted)


def test_process_killed_while_it_saves_ends_with_the_same_weights(
    inputs: Path, uninterrupted: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """SIGKILL when the second save has its weights and not yet its optimizer."""
    script = (
        "import os, signal, sys; from transformers import Trainer; import rerank_training.train_first as command\n"
        "save = Trainer._save_optimizer_and_scheduler\n"
        "def kill(self, folder):\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if folder.endswith('-6') else save(self, folder)\n"
        "Trainer._save_optimizer_and_scheduler = kill\n"
        "command.main()\n"
    )
    command = [sys.executable, "-c", script, *first_flags(inputs, tmp_path / "run", *FLAGS)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert saves(tmp_path / "run") == {3: True, 6: False}
    assert_same_weights(first_run(inputs, tmp_path / "run", *FLAGS), uninterrupted)


@pytest.mark.parametrize("steps", [[], ["--max_steps", "4"]], ids=["all", "max-steps"])
def test_run_killed_behind_its_last_step_takes_no_step_more(inputs: Path, tmp_path: Path, steps: list[str]) -> None:
    expected = load_file(first_run(inputs, tmp_path / "whole", *FLAGS, *steps) / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rerank_training.train_first.write_result", killed)
        with pytest.raises(Killed):
            first_run(inputs, tmp_path / "run", *FLAGS, *steps)
    with killed_at_batch(0):
        result = first_run(inputs, tmp_path / "run", *FLAGS, *steps)
    assert_same_weights(result, expected)


def killed(*_: Any) -> None:
    raise Killed


def test_old_saves_go_only_when_the_new_one_is_whole(inputs: Path, tmp_path: Path) -> None:
    """With room for one save, a kill at the end of the second must not leave none."""
    with pytest.MonkeyPatch.context() as patch:
        touch = Path.touch

        def unmarked(self: Path, *options: Any, **more: Any) -> None:
            if self.parent.name == "checkpoint-6":
                raise Killed
            touch(self, *options, **more)

        patch.setattr(Path, "touch", unmarked)
        with pytest.raises(Killed):
            first_run(inputs, tmp_path / "run", *FLAGS, "--save_total_limit", "1")
    assert saves(tmp_path / "run") == {3: True, 6: False}
    first_run(inputs, tmp_path / "run", *FLAGS, "--save_total_limit", "1")
    assert saves(tmp_path / "run") == {8: True}


# --- refused


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--window_size", "3", "another window_size (window_size: 4, now 3)"),
        ("--num_train_epochs", "4", "another num_train_epochs (num_train_epochs: 3.0, now 4.0)"),
        ("--seed", "1", "another seed (seed: 42, now 1)"),
    ],
)
def test_other_arguments_in_the_same_folder_are_refused(
    inputs: Path, tmp_path: Path, flag: str, value: str, message: str
) -> None:
    with killed_at_batch(0), pytest.raises(Killed):
        first_run(inputs, tmp_path / "run", *FLAGS)
    with pytest.raises(ConfigError) as refused:
        first_run(inputs, tmp_path / "run", *FLAGS, flag, value)
    assert message in str(refused.value)


def test_finished_run_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "run" / "final").mkdir(parents=True)
    with pytest.raises(ConfigError, match="final exists: that run is finished; choose another output_dir"):
        first_run(tmp_path / "no inputs", tmp_path / "run")


def test_folder_that_cannot_be_made_is_refused(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/run cannot be written"):
        first_run(inputs, tmp_path / "file" / "run")


def test_result_stands_in_the_folder_final(tmp_path: Path) -> None:
    assert result_folder(str(tmp_path)) == tmp_path / "final"


def test_folder_without_saves_begins_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "arguments.json").touch()
    assert last_save(tmp_path) is None


def test_newest_save_is_by_number_not_by_name(tmp_path: Path) -> None:
    for step in (900, 1000, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / SAVED_WHOLE).touch()
    assert last_save(tmp_path) == str(tmp_path / "checkpoint-1000")


# --- no room


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """The kernel refuses longer files, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("part", ["_save_optimizer_and_scheduler", "_save"])
def test_full_disk_says_what_to_do_and_keeps_the_last_whole_save(
    inputs: Path, uninterrupted: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Of torch's files and of safetensors'."""
    original = getattr(Trainer, part)

    def save(self: Trainer, folder: str, *more: Any, **options: Any) -> None:
        if not folder.endswith("-6"):
            return original(self, folder, *more, **options)
        with largest_file(1000):
            return original(self, folder, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, part, save)
        with pytest.raises(ConfigError) as refused:
            first_run(inputs, tmp_path / "run", *FLAGS)
    assert "checkpoint-6 cannot be written" in str(refused.value)
    assert "make room and give the same command again" in str(refused.value)
    assert saves(tmp_path / "run") == {3: True, 6: False}
    assert_same_weights(first_run(inputs, tmp_path / "run", *FLAGS), uninterrupted)


def test_full_disk_at_the_end_leaves_no_half_result(
    inputs: Path, uninterrupted: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_manifest(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rerank_training.checkpoint.write_manifest", write_manifest)
        with pytest.raises(ConfigError, match=r"final cannot be written.*make room"):
            first_run(inputs, tmp_path / "run", *FLAGS)
    assert not [path for path in (tmp_path / "run").iterdir() if "final" in path.name]
    assert_same_weights(first_run(inputs, tmp_path / "run", *FLAGS), uninterrupted)


# --- how it trains


def test_accumulated_batches_make_the_step_of_one_large_batch(inputs: Path, tmp_path: Path) -> None:
    flags = shlex.split("--objective rank --max_steps 1 --learning_rate 1e-2 --optim sgd --max_grad_norm 0")
    small = shlex.split("--per_device_train_batch_size 2 --gradient_accumulation_steps 4")
    large = shlex.split("--per_device_train_batch_size 8")
    found, expected = (
        load_file(first_run(inputs, tmp_path / name, *flags, *batches) / "model.safetensors")
        for name, batches in (("small", small), ("large", large))
    )
    base = load_file(inputs / "base" / "model.safetensors")
    assert any((expected[name] - base[name]).abs().max() > 1e-4 for name in expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-4)


def test_part_of_an_epoch_counts_whole_and_max_steps_goes_before(inputs: Path, tmp_path: Path) -> None:
    for flags, batches in (("--num_train_epochs 1.5", 10), ("--num_train_epochs 9 --max_steps 3", 3)):
        with killed_at_batch(-1) as seen:
            first_run(inputs, tmp_path / flags, "--per_device_train_batch_size", "2", *flags.split())
        assert len(seen) == batches


def test_best_save_is_kept_also_where_evaluations_fall_between_saves(inputs: Path, tmp_path: Path) -> None:
    """Held-out nDCG is best at step 2 of 6; saves are asked for at step 4 only."""
    measured = iter([0.2, 0.9, 0.3, 0.4, 0.1, 0.5, 0.9])
    flags = shlex.split(
        "--per_device_train_batch_size 2 --max_steps 6 --eval_steps 1 --save_steps 4 --learning_rate 1e-3"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rerank_training.trainer.RankingTrainer._mean_ndcg", lambda *_: next(measured))
        result = first_run(inputs, tmp_path / "run", *flags, "--eval_lists", str(inputs / "lists.jsonl"))
    assert saves(tmp_path / "run") == {2: True, 6: True}
    assert_same_weights(result, load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors"))
    assert json.loads((result / "rerank.json").read_text(encoding="utf-8"))["metrics"] == {"nDCG@10": 0.9}
