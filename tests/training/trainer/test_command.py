"""One process, and the messages of one of several; test_processes.py compares two processes with one."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from rerank_training.trainer.command import LostProcess, report_lost_process, run_training
from torch import distributed

from rerank.commands.run import console


@pytest.mark.parametrize(("rank", "level", "is_quiet"), [("0", logging.INFO, False), ("1", logging.ERROR, True)])
def test_only_the_first_process_logs_and_shows_progress(monkeypatch, rank, level, is_quiet):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(console, "quiet", False)
    logging.getLogger().handlers.clear()  # pytest's; the fixture of all tests restores them
    found: list[object] = []
    run_training(lambda: found.extend([logging.getLogger("rerank_training.x").getEffectiveLevel(), console.quiet]))
    assert found == [level, is_quiet]


def test_lost_connection_names_the_way_out(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    gone = RuntimeError("[/src/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection reset by peer")
    for error in (gone, distributed.DistBackendError("NCCL timeout")):
        with pytest.raises(LostProcess, match=r"process 1 lost the connection .* give the same command again"):
            report_lost_process(_raise(error))
    with pytest.raises(RuntimeError, match="shapes differ"):
        report_lost_process(_raise(RuntimeError("shapes differ")))


def test_process_of_several_is_not_finalized_in_which_gloo_may_abort_it():
    script = """
import atexit, sys
from rerank_training.trainer.command import run_training
class Finalized:
    def __del__(self, write=sys.stdout.write, flush=sys.stdout.flush):
        write("finalized\\n")
        flush()
kept = Finalized()
atexit.register(print, "exit handler")
run_training(lambda: sys.exit(3))
"""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (3, "exit handler"), ended.stderr


def _raise(error: Exception) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command
