"""`rerank inspect`: what it refuses, and that it serves until it is stopped."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.rerank.commands.conftest import Command
from tests.rerank.inspector.results import FIRST_STAGE, write_collection, write_system


@pytest.fixture
def results(beir_folder: Path, tmp_path: Path) -> Path:
    collection = write_collection(Path(shutil.copytree(beir_folder, tmp_path / "twelve")))
    write_system(tmp_path / "results", {"ranker": "number"}, FIRST_STAGE, collection)
    return tmp_path / "results"


@pytest.mark.parametrize("listen", ["8081", ":8081", "localhost:", "localhost:http"])
def test_address_must_be_host_and_port(rerank: Command, results: Path, listen: str) -> None:
    error = rerank("inspect", results, "--listen", listen).error
    assert error == f"--listen {listen!r} is not HOST:PORT, such as 127.0.0.1:8081"


@pytest.mark.parametrize("listen", ["0.0.0.0:8081", "[::]:8081"])
def test_other_addresses_than_the_loopback_need_insecure(rerank: Command, results: Path, listen: str) -> None:
    error = rerank("inspect", results, "--listen", listen).error
    assert error == (
        f"--listen {listen}: anyone who reaches this address could read the evaluation; listen on 127.0.0.1, or accept "
        "that with --insecure"
    )
    missing = results / "missing"
    assert rerank("inspect", missing, "--listen", listen, "--insecure").error.startswith(f"{missing} holds no results")


def test_folder_without_results_is_refused(rerank: Command, tmp_path: Path) -> None:
    assert (
        rerank("inspect", tmp_path).error
        == f"{tmp_path} holds no results of an evaluation; give the --out folder of one"
    )


@pytest.mark.slow
def test_page_is_served_until_ctrl_c(results: Path) -> None:
    command = [sys.executable, "-m", "rerank.commands.cli", "inspect", str(results)]
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen([*command, "--listen", address], stdout=subprocess.PIPE, text=True) as process:
        try:
            content = fetched(f"http://{address}/inspector/evaluation", process)
            assert [query["query_id"] for query in json.loads(content)["queries"]] == ["q1", "q2"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert f"http://{address}" in process.stdout.read()
        assert process.wait(30) in (0, 130, -signal.SIGINT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fetched(url: str, process: subprocess.Popen[str]) -> bytes:
    """The answer, once the process serves."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                content: bytes = answer.read()
                return content
        except OSError:
            assert process.poll() is None, "the process has ended"
            time.sleep(0.1)
    raise TimeoutError(url)
