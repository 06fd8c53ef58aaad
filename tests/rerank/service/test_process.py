"""Real processes: how `rerank serve` starts, stops, dies, and starts again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from rerank.service.client import RerankClient, ServiceError
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, refusal

QUERY = "how long does a flea live"
#: Without stored vectors, encoding these takes many seconds.
SLOW = [pb.Candidate(doc_id=f"d{number}", text=f"{number} fleas in winter " * 60) for number in range(500)]


@dataclass(frozen=True)
class Process:
    """A `rerank serve` that may still be starting."""

    popen: subprocess.Popen[str]
    log: Path

    def address(self) -> str:
        """Waits until it listens."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), f"{line!r}\n{self.stderr()}"
        return line.removeprefix("listening on ").strip()

    def exit_code(self) -> int:
        """Waits until it has ended."""
        return self.popen.wait(TIMEOUT_S)

    def stderr(self) -> str:
        return self.log.read_text(encoding="utf-8")


@contextmanager
def started(folder: Path, name: str, *options: object) -> Iterator[Process]:
    """A process that does not outlive the block."""
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--device", "cpu", *map(str, options)]
    with log.open("w", encoding="utf-8") as stderr:
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with popen:
        try:
            yield Process(popen, log)
        finally:
            popen.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """Holds configurations and logs."""
    made = tmp_path_factory.mktemp("processes")
    model = f"{{name: pe-rank, ranker: pe-rank, path: {checkpoint}}}"
    (made / "good.yaml").write_text(f"models: [{model}]", encoding="utf-8")
    (made / "bad.yaml").write_text("listn: 127.0.0.1:0", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def misconfigured(folder: Path) -> Iterator[Process]:
    with started(folder, "misconfigured", "--config", folder / "bad.yaml") as process:
        yield process


@pytest.fixture(scope="module")
def victim(folder: Path, index_folder: Path, misconfigured: Process) -> Iterator[Process]:
    """Starts while the misconfigured one does, since a start is mostly imports."""
    with started_on(folder, index_folder, "victim", "127.0.0.1:0") as process:
        yield process


def started_on(folder: Path, index: Path, name: str, listen: str) -> AbstractContextManager[Process]:
    return started(folder, name, "--config", folder / "good.yaml", "--index", index, "--listen", listen)


def test_service_that_is_killed_leaves_nothing_in_the_way_of_the_next(
    victim: Process, folder: Path, index_folder: Path
) -> None:
    address = victim.address()
    with grpc.insecure_channel(address) as channel:
        stub = RerankServiceStub(channel)
        call = stub.Rerank.future(pb.RerankRequest(query=QUERY, candidates=SLOW), timeout=TIMEOUT_S)
        stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)  # answered, so the call before it has arrived
        assert not call.done()
        victim.popen.kill()
        assert refusal(call.result).code is grpc.StatusCode.UNAVAILABLE
    assert victim.exit_code() == -signal.SIGKILL

    with started_on(folder, index_folder, "successor", address) as successor, RerankClient(address) as client:
        assert successor.address() == address
        assert client.search(QUERY, TIMEOUT_S).results[0].doc_id == "flea"
        successor.popen.terminate()
        assert successor.exit_code() == 0
        assert "Traceback" not in successor.stderr()
        with pytest.raises(ServiceError) as caught:
            client.list_models(TIMEOUT_S)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE


def test_unknown_key_is_one_line_and_exit_code_2(misconfigured: Process, folder: Path) -> None:
    assert misconfigured.exit_code() == 2
    message = f"{folder / 'bad.yaml'}: listn: Extra inputs are not permitted (given '127.0.0.1:0')"
    assert misconfigured.stderr() == f"error: {message}\n"


def test_service_ends_with_the_parent_that_was_killed(tmp_path: Path) -> None:
    parent = (
        "from rerank.config import load_config\n"
        "from rerank.service.process import service_process\n"
        "config = load_config(None, models=[{'name': 'identity', 'ranker': 'identity'}], listen='127.0.0.1:0')\n"
        "with service_process(config) as address:\n"
        "    print(address, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as popen:
        assert popen.stdout is not None
        address = popen.stdout.readline().strip()
        with RerankClient(address) as client:
            client.list_models(TIMEOUT_S)
            popen.kill()
            popen.wait(TIMEOUT_S)
            deadline = time.monotonic() + TIMEOUT_S
            while _answers(client):
                assert time.monotonic() < deadline
                time.sleep(0.1)


def _answers(client: RerankClient) -> bool:
    try:
        client.list_models(TIMEOUT_S)
    except ServiceError as error:
        return error.code is not grpc.StatusCode.UNAVAILABLE
    return True
