"""Trainings in two processes, which start, save, resume and end like one process with the same lists per step."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rerank_training.e2rank.arguments import E2RankArguments, E2RankRunFlags
from rerank_training.e2rank.training import train_e2rank
from rerank_training.retriever.arguments import RetrieverArguments, RetrieverRunFlags
from rerank_training.retriever.distillation import distill_retriever
from rerank_training.trainer.ranking_trainer import COMPLETE_MARKER
from safetensors.torch import load_file
from torch.distributed import TCPStore

from rerank.checkpoints.manifest import read_manifest
from rerank.collections import open_collection
from rerank.models.encoder import Encoder
from rerank.retrieval.build import build_index
from tests.conftest import PASSAGES
from tests.eval.data import write
from tests.small_encoder import write_small_encoder
from tests.training.parsing import parse_arguments
from tests.training.small_lists import HELD_OUT, e2rank_base, write_training_lists
from tests.training.trainer.process_losses import LOSSES, joined, lists_of, stepped, tiny_lm
from tests.word_lists import first_flags, first_run, write_inputs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 240
#: Three passes of 10 lists in steps of four windows: eight steps, the last with two windows of a fourth pass. Windows
#: differ in size.
FIRST = shlex.split(
    "--learning-rate 1e-3 --min-window-size 2 --logging-steps 1 --save-steps 3 --eval-steps 3 --num-train-epochs 3"
)
#: Mining, training, encoding and the report.
RETRIEVER = shlex.split(
    "--depth 6 --list-size 3 --lora-rank 2 --max-steps 3 "
    "--learning-rate 1e-3 --save-steps 2 --logging-steps 1 --use-cpu true"
)
E2RANK = shlex.split(
    "--window-size 4 --passage-tokens 64 --max-steps 3 --warmup-steps 0 --save-steps 3 --logging-steps 1 "
    "--learning-rate 1e-3 --use-cpu true"
)
KILLED_WHILE_SAVING = """
import os, signal
from rerank_training.commands import train_first
from rerank_training.trainer import command
train = command.report_lost_process
def train_and_kill(work):
    from transformers import Trainer  # as late as the command imports torch
    save = Trainer._save_rng_state
    def kill(self, folder):
        if os.environ["RANK"] == "1" and folder.endswith("-6"):
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, folder)
    Trainer._save_rng_state = kill
    return train(work)
command.report_lost_process = train_and_kill
train_first()
"""
#: All trainings and losses in the same two processes, because the start of a process takes longer than a training.
TRAIN_ALL = """
import json, os, sys
from pathlib import Path
from rerank_training import commands
from rerank_training.trainer import command
from tests.training.trainer.process_losses import store_losses
leave, command.end_process = command.end_process, sys.exit
end, command.end_process_group = command.end_process_group, lambda: None
folder = Path(__file__).parent
for name, flags in json.loads(sys.argv[1]):
    sys.argv = [name, *flags]
    try:
        getattr(commands, name)()
    except SystemExit as ended:
        if ended.code:
            raise
store_losses(folder)
end()
leave(0)
"""


def in_folder(folder: Path, windows: int) -> list[str]:
    """The flags of a run in this folder with `windows` windows or queries per step and device."""
    return ["--output-dir", str(folder), "--per-device-train-batch-size", str(windows)]


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


def files(folder: Path) -> set[str]:
    """The files of a run but for the states of each process's random number generator."""
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


@dataclass(frozen=True)
class KilledRun:
    """A run of `train-first` in two processes without a launcher; the second is killed while it saves.

    Attributes:
        codes, stdout, stderr: of both processes.
        saves: step → True if the save is complete.
        files: all files of the run.
    """

    codes: list[int]
    stdout: list[str]
    stderr: list[str]
    saves: Mapping[int, bool]
    files: set[str]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), 10)


@pytest.fixture(scope="module")
def first(inputs: Path) -> list[str]:
    """The flags of `train-first` but for inputs, folder and windows per device."""
    return [*FIRST, "--eval-lists", str(inputs / "held-out.jsonl")]


@pytest.fixture(scope="module")
def retriever(beir_folder: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """With an encoder that has no dropout, because processes draw different random numbers."""
    folder = tmp_path_factory.mktemp("retriever")
    small = write_small_encoder(folder / "encoder", encoder)
    build_index(open_collection(str(beir_folder)), folder / "index", small)
    rows = ({"_id": f"q-{doc_id}", "text": title} for doc_id, (title, _) in PASSAGES.items())
    write(folder / "queries.jsonl", *rows)
    return [*RETRIEVER, "--index", str(folder / "index"), "--queries", str(folder)]


@pytest.fixture(scope="module")
def e2rank(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("e2rank")
    lists, held_out = folder / "lists.jsonl", folder / "held-out.jsonl"
    write_training_lists(lists), write_training_lists(held_out, queries=HELD_OUT)
    return [*E2RANK, "--lists", str(lists), "--eval-lists", str(held_out), "--base", e2rank_base(folder / "base")]


@pytest.fixture(scope="module")
def killed(inputs: Path, first: list[str]) -> KilledRun:
    folder = inputs / "two"
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED_WHILE_SAVING, *first_flags(inputs, folder, *first, *in_folder(folder, 2))],
            cwd=ROOT,
            env={**os.environ, **shared, "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    stdout, stderr = zip(*(process.communicate(timeout=TIMEOUT_S) for process in processes), strict=True)
    saves = {int(path.name.split("-")[1]): (path / COMPLETE_MARKER).is_file() for path in folder.glob("checkpoint-*")}
    return KilledRun([process.returncode for process in processes], [*stdout], [*stderr], saves, files(folder))


@pytest.fixture(scope="module")
def two(inputs: Path, killed: KilledRun, first: list[str], e2rank: list[str], retriever: list[str]) -> None:
    """Trains in two processes under torchrun, in folders that begin with `two`; the first resumes the killed run."""
    runs = {
        "train_first": first_flags(inputs, inputs / "two", *first, *in_folder(inputs / "two", 2)),
        "train_e2rank": [*e2rank, *in_folder(inputs / "two-e2rank", 2)],
        "distill_retriever": [*retriever, *in_folder(inputs / "two-retriever", 4)],
    }
    (inputs / "train_all.py").write_text(TRAIN_ALL)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*launcher, str(inputs / "train_all.py"), json.dumps([*runs.items()])],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def found(inputs: Path, two: None) -> list[dict[str, Any]]:
    """What `store_losses` found in each of the two processes."""
    return [torch.load(inputs / f"{rank}.pt") for rank in range(2)]


def test_process_that_loses_another_one_ends_with_one_line(killed):
    assert killed.codes == [1, -signal.SIGKILL], killed.stderr
    assert "error: process 0 lost the connection to another training process" in killed.stderr[0]
    assert "Traceback" not in killed.stderr[0]
    assert "find_unused_parameters" not in killed.stderr[0]  # which DDP says of each model
    assert killed.saves == {3: True, 6: False}
    assert not [path for path in killed.files if path.startswith("final")]


def test_two_processes_train_first_like_one_even_if_one_of_them_is_killed(inputs, first, two):
    one = first_run(inputs, inputs / "one", *first, *in_folder(inputs / "one", 4))
    found = logged(inputs / "two")
    assert_same_curve(found, logged(inputs / "one"))
    assert len([key for key in found if key[1] == "loss"]) == 8
    assert_close_weights(inputs / "two" / "final" / "model.safetensors", one / "model.safetensors")
    assert read_manifest(inputs / "two" / "final") is not None
    assert files(inputs / "two") == files(inputs / "one")
    assert not list((inputs / "two").glob(".*"))


def test_two_processes_train_e2rank_like_one(inputs, e2rank, two):
    flags = [*e2rank, *in_folder(inputs / "one-e2rank", 4)]
    train_e2rank(*parse_arguments(E2RankArguments, *flags, run_flags_type=E2RankRunFlags))
    assert_same_curve(logged(inputs / "two-e2rank"), logged(inputs / "one-e2rank"))
    assert files(inputs / "two-e2rank") == files(inputs / "one-e2rank")


def test_two_processes_distil_a_retriever_like_one(inputs, retriever, two):
    one, both = inputs / "one-retriever", inputs / "two-retriever"
    flags = [*retriever, *in_folder(one, 8)]
    distill_retriever(*parse_arguments(RetrieverArguments, *flags, run_flags_type=RetrieverRunFlags))
    assert_same_curve(logged(both / "training"), logged(one / "training"))
    assert_close_weights(both / "encoder" / "model.safetensors", one / "encoder" / "model.safetensors")
    assert files(both) == files(one)
    assert json.loads((both / "report.json").read_text())["training_queries"] == len(PASSAGES)


# --- losses


@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_have_the_loss_and_the_gradient_of_one(found, name):
    """The average of the gradients is one process's, so each is twice its part of it."""
    parts = [lists_of(rank) for rank in range(2)]
    scores, relevance, mask = (joined(*tensors) for tensors in zip(*parts, strict=True))
    value = LOSSES[name](scores, relevance, mask)
    value.backward()
    for (own, *_), process in zip(parts, found, strict=True):
        loss, gradient = process[name]
        torch.testing.assert_close(loss, value.detach())
        torch.testing.assert_close(gradient, 2 * own.grad)
        assert gradient.abs().max() > 1e-3


def test_first_process_is_the_main_one_and_rows_are_in_the_order_of_the_processes(found):
    assert [(process["count"], process["main"]) for process in found] == [(2, True), (2, False)]
    for process in found:
        assert process["rows"].tolist() == [[1, 1], [2, 0], [2, 0]]
        assert process["nothing"] == 0


def test_divided_model_has_the_loss_of_a_whole_one_and_the_main_process_gets_all_its_weights(found):
    """As --fsdp divides it."""
    whole = tiny_lm()
    expected = stepped(whole)
    for process in found:
        torch.testing.assert_close(process["divided losses"], expected)
    weights = found[0]["divided weights"]
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(weights[name], weight)
