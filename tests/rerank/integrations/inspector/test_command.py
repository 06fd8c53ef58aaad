"""`rerank inspect`: what it refuses, and that it serves until it is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.rerank.commands.conftest import Command
from tests.rerank.integrations.inspector.results import FIRST_STAGE, write_collection, write_system
from tests.serving import free_port, wait_for


@pytest.fixture
def results(beir_folder: Path, tmp_path: Path) -> Path:
    collection = write_collection(tmp_path / "twelve", beir_folder)
    write_system(tmp_path / "results", {"ranker": "number"}, FIRST_STAGE, collection)
    return tmp_path / "results"


@pytest.mark.parametrize("listen", ["0.0.0.0:8081", "[::]:8081"])
def test_other_addresses_than_the_loopback_need_insecure(rerank: Command, results: Path, listen: str) -> None:
    error = rerank("inspect", results, "--listen", listen).error
    assert error == (
        f"--listen {listen}: anyone who reaches this address could read the evaluation; listen on 127.0.0.1, or accept "
        "that with --insecure"
    )
    missing = results / "missing"
    assert rerank("inspect", missing, "--listen", listen, "--insecure").error.startswith(f"{missing} holds no results")


@pytest.mark.slow
def test_page_is_served_until_ctrl_c(results: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "rerank.commands.cli", "inspect", str(results), "--listen", address]
    answers: list[Any] = []

    def is_answered() -> bool:
        assert process.poll() is None, "the process has ended"
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/inspector/evaluation", timeout=30) as answer:
            answers.append(json.load(answer))
        return bool(answers)

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(is_answered)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert f"http://{address}" in process.stdout.read()
        assert process.wait(30) in (0, 130, -signal.SIGINT)
    assert [query["query_id"] for query in answers[0]["queries"]] == ["q1", "q2"]
