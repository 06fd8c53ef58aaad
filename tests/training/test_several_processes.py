"""Trainings in two processes, which start, save, resume and end like one process with the same lists per step."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.pe_rank.training import train_pe_rank
from rerank_training.retriever.arguments import RetrieverArguments, RetrieverRunFlags
from rerank_training.retriever.distillation import distill_retriever
from rerank_training.trainer.ranking_trainer import COMPLETE_MARKER
from safetensors.torch import load_file
from torch.distributed import TCPStore

from rerank.manifest import read_manifest
from rerank.models.encoder import Encoder
from tests.conftest import PASSAGES
from tests.training.parsing import parse_arguments
from tests.training.pe_rank.pe_lists import write_training_lists
from tests.word_lists import first_flags, first_run, write_inputs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240
#: Three passes of 10 lists in steps of four windows: eight steps, the last with two windows of a fourth pass. Windows
#: differ in size.
FIRST = shlex.split(
    "--learning-rate 1e-3 --min-window-size 2 --logging-steps 1 --save-steps 3 --eval-steps 3 --num-train-epochs 3"
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def launch(module: str, flags: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a training command in two processes."""
    return run([*TORCHRUN, "-m", f"rerank_training.{module}", *flags])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def per_device(windows: int) -> list[str]:
    return ["--per-device-train-batch-size", str(windows)]


def logged(folder: Path) -> dict[tuple[int, str], float]:
    """Losses and held-out nDCG@10 by step, from the last save of a run."""
    last = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    return {
        (entry["step"], key): entry[key]
        for entry in history
        for key in ("loss", "eval_nDCG@10", "before_nDCG@10")
        if key in entry
    }


def saves(run_folder: Path) -> dict[int, bool]:
    """Step → True if the save is complete."""
    return {
        int(path.name.split("-")[1]): (path / COMPLETE_MARKER).is_file() for path in run_folder.glob("checkpoint-*")
    }


def files(folder: Path) -> set[str]:
    """The files of a run but for the states of the random number generators, of which each process has one."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if "rng_state" not in path}


def assert_same_curve(found: Mapping[tuple[int, str], float], expected: Mapping[tuple[int, str], float]) -> None:
    assert found.keys() == expected.keys()
    for key in expected:
        assert found[key] == pytest.approx(expected[key], abs=1e-4), key


def assert_close_weights(found: Path, expected: Path) -> None:
    first, second = load_file(found), load_file(expected)
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), 10)


@pytest.fixture(scope="module")
def flags(inputs: Path) -> list[str]:
    return [*FIRST, "--eval-lists", str(inputs / "lists.jsonl")]


KILLED_WHILE_SAVING = """
import os, signal
from transformers import Trainer
import rerank_training.train_first as command
save = Trainer._save_rng_state
def kill(self, folder):
    if os.environ["RANK"] == "1" and folder.endswith("-6"):
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, folder)
Trainer._save_rng_state = kill
command.main()
"""


@dataclass(frozen=True)
class Resumed:
    """A run of `train-first` in two processes, of which the second is killed while it saves; and the same run resumed.

    Attributes:
        saves: those of the killed run.
        files: all files of the killed run.
    """

    folder: Path
    killed: subprocess.CompletedProcess[str]
    saves: Mapping[int, bool]
    files: set[str]
    resumed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def run_of_two(inputs: Path, flags: list[str]) -> Resumed:
    folder = inputs / "two"
    given = first_flags(inputs, folder, *flags, *per_device(2))
    killed = run([*TORCHRUN, "--no-python", sys.executable, "-c", KILLED_WHILE_SAVING, *given])
    found = saves(folder), files(folder)
    return Resumed(folder, killed, *found, launch("train_first", given))


def test_run_of_which_one_process_is_killed_ends(run_of_two: Resumed) -> None:
    assert run_of_two.killed.returncode == 1
    assert "Signal 9 (SIGKILL)" in run_of_two.killed.stderr
    assert run_of_two.saves == {3: True, 6: False}
    assert not [path for path in run_of_two.files if path.startswith("final")]


def test_two_processes_train_first_like_one_even_if_one_of_them_is_killed(
    inputs: Path, flags: list[str], run_of_two: Resumed
) -> None:
    assert run_of_two.resumed.returncode == 0, run_of_two.resumed.stderr
    one = first_run(inputs, inputs / "one", *flags, *per_device(4))
    found = logged(run_of_two.folder)
    assert_same_curve(found, logged(inputs / "one"))
    assert len([key for key in found if key[1] == "loss"]) == 8
    assert_close_weights(run_of_two.folder / "final" / "model.safetensors", one / "model.safetensors")
    assert read_manifest(run_of_two.folder / "final") is not None
    assert files(run_of_two.folder) == files(inputs / "one")
    assert not list(run_of_two.folder.glob(".*"))


def test_only_one_process_reports(run_of_two: Resumed) -> None:
    assert run_of_two.killed.stdout.count("before the training\n") == 1
    assert run_of_two.killed.stdout.count("step      1/8  loss") == 1
    assert run_of_two.resumed.stdout.count("resuming at step 3 of 8") == 1
    assert run_of_two.resumed.stdout.count("step      8/8  loss") == 1
    assert run_of_two.resumed.stdout.count("serve it:") == 1


KILLED_IN_A_STEP = """
import os, signal
from rerank_training.first.objective import FirstObjective
import rerank_training.train_first as command
loss = FirstObjective.loss
seen = []
def kill(self, model, batch):
    seen.append(batch)
    if os.environ["RANK"] == "1" and len(seen) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(self, model, batch)
FirstObjective.loss = kill
command.main()
"""


def test_process_that_loses_another_one_ends_with_one_line(inputs: Path, flags: list[str], tmp_path: Path) -> None:
    """Without a launcher, which would end it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    given = first_flags(inputs, tmp_path / "run", *flags, *per_device(2))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED_IN_A_STEP, *given],
            cwd=ROOT,
            env={**os.environ, **shared, "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    ended = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    assert [process.returncode for process in processes] == [2, -signal.SIGKILL], ended
    assert "error: process 0 lost the connection to another training process" in ended[0][1]
    assert "Traceback" not in ended[0][1]
    assert saves(tmp_path / "run") == {3: True}


def test_two_processes_train_pe_rank_like_one(checkpoint: Path, encoder: Encoder, tmp_path: Path) -> None:
    """With the loss on texts too, which reads the model twice in a step."""
    lists = str(write_training_lists(tmp_path / "lists.jsonl"))
    shared = ["--lists", lists, "--eval-lists", lists, "--base", str(checkpoint)]
    shared += shlex.split(
        "--window-size 4 --min-window-size 2 --passage-text-tokens 6 --max-steps 4 --warmup-steps 0 --save-steps 2 "
        "--eval-steps 2 --learning-rate 1e-3 --logging-steps 1 --report-to none --use-cpu true"
    )
    train_pe_rank(
        *parse_arguments(PERankArguments, *shared, "--output-dir", str(tmp_path / "one"), *per_device(4)),
        encoder,
    )
    ended = launch("train_pe_rank", [*shared, "--output-dir", str(tmp_path / "two"), *per_device(2)])
    assert ended.returncode == 0, ended.stderr
    assert_same_curve(logged(tmp_path / "two"), logged(tmp_path / "one"))
    assert files(tmp_path / "two") == files(tmp_path / "one")


@pytest.fixture(scope="module")
def index_without_dropout(beir_folder: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose encoder has no dropout, because processes draw different random numbers."""
    folder = tmp_path_factory.mktemp("dropout")
    shutil.copytree(encoder.folder, folder / "encoder")
    settings = json.loads((folder / "encoder" / "config.json").read_text())
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "encoder" / "config.json").write_text(json.dumps(settings))
    paths = ["--collection", beir_folder, "--out", folder / "index", "--encoder", folder / "encoder"]
    index = [sys.executable, "-c", "from rerank.commands.cli import main; main()", "index"]
    ended = run([*index, *map(str, paths), "--device", "cpu"])
    assert ended.returncode == 0, ended.stderr
    return folder / "index"


def test_two_processes_distil_a_retriever_like_one(index_without_dropout: Path, tmp_path: Path) -> None:
    """With in-batch negatives, in two rounds: mining, training, encoding and the report."""
    rows = [{"_id": f"q-{doc_id}", "text": title} for doc_id, (title, _) in PASSAGES.items()]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shared = ["--index", str(index_without_dropout), "--queries", str(tmp_path)]
    shared += shlex.split(
        "--depth 6 --list-size 3 --lora-rank 2 --text-tokens 16 --rounds 2 --in-batch-weight 0.5 --max-steps 3 "
        "--learning-rate 1e-3 --save-steps 2 --logging-steps 1 --use-cpu true --report-to none"
    )
    one = [*shared, "--output-dir", str(tmp_path / "one"), *per_device(8)]
    distill_retriever(*parse_arguments(RetrieverArguments, *one, run_flags_type=RetrieverRunFlags))
    ended = launch("distill_retriever", [*shared, "--output-dir", str(tmp_path / "two"), *per_device(4)])
    assert ended.returncode == 0, ended.stderr
    for number in (1, 2):
        work = f"round-{number}"
        assert_same_curve(logged(tmp_path / "two" / work), logged(tmp_path / "one" / work))
    assert_close_weights(
        tmp_path / "two" / "encoder" / "model.safetensors", tmp_path / "one" / "encoder" / "model.safetensors"
    )
    assert files(tmp_path / "two") == files(tmp_path / "one")
    assert json.loads((tmp_path / "two" / "report.json").read_text())["training_queries"] == len(PASSAGES)
