"""Service processes: `rerank serve` and signals, its successor at the same address, and a start that fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import grpc
import pytest
import yaml

from rerank.access.callers import CallerLimits
from rerank.access.credentials import Credentials
from rerank.access.key_file import add_key
from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.commands.service_process import service_process
from rerank.config import load_config
from rerank.errors import CheckpointError, ConfigError, RerankError
from rerank.ports.server import serve
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, refusal

QUERY = "how long does a flea live"
#: Encoding these takes many seconds.
SLOW = [pb.Candidate(doc_id=f"d{number}", text=f"{number} fleas in winter " * 60) for number in range(500)]

#: Runs a service with the configuration file argv[1], prints its address, and waits.
PARENT = """
import sys
from pathlib import Path
from rerank.config import load_config
from rerank.commands.service_process import service_process

with service_process(load_config(Path(sys.argv[1]))) as address:
    print(address, flush=True)
    input()
"""


def write_config(folder: Path, checkpoint: Path, listen: str = "127.0.0.1:0") -> Path:
    model = {"name": "pe-rank", "ranker": "pe-rank", "path": str(checkpoint)}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"models": [model], "listen": listen, "device": "cpu"}))
    return path


@dataclass(frozen=True)
class Service:
    """A service in a process of its own, and its log."""

    process: subprocess.Popen[str]
    address: str
    log: IO[str]

    @contextmanager
    def slow_call(self) -> Iterator[grpc.Future]:
        """A call that the service works on for many seconds."""
        with grpc.insecure_channel(self.address) as channel:
            stub = RerankServiceStub(channel)
            request = pb.RerankRequest(query=QUERY, candidates=SLOW, allow_partial=True)
            call = stub.Rerank.future(request, timeout=TIMEOUT_S)
            stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)  # answered after the call has arrived
            assert not call.done()
            yield call


@contextmanager
def started(config: Path) -> Iterator[Service]:
    """`rerank serve` with a configuration file."""
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            yield Service(process, address, process.stderr)
        finally:
            process.kill()


@dataclass(frozen=True)
class Ended:
    """A service that ended at a second signal while it answered a call."""

    address: str
    code: int
    seconds: float
    log: str
    of_call: grpc.StatusCode


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Ended:
    with started(write_config(tmp_path_factory.mktemp("ended"), checkpoint)) as service, service.slow_call() as call:
        service.process.terminate()
        time.sleep(0.5)
        assert not call.done()
        start_s = time.monotonic()
        service.process.terminate()
        code = service.process.wait(TIMEOUT_S)
        seconds = time.monotonic() - start_s
        return Ended(service.address, code, seconds, service.log.read(), refusal(call.result).code)


@pytest.mark.slow
def test_second_signal_ends_the_service_at_once(ended: Ended) -> None:
    """It took 36 s, for the calls in flight, and ended with a traceback."""
    assert (ended.code, ended.of_call) == (1, grpc.StatusCode.UNAVAILABLE)
    assert ended.seconds < 5
    assert "second signal received" in ended.log
    assert "Traceback" not in ended.log


@pytest.mark.slow
def test_successor_at_the_same_address_answers_and_ends_with_its_killed_parent(
    ended: Ended, tmp_path: Path, checkpoint: Path
) -> None:
    config = write_config(tmp_path, checkpoint, ended.address)
    command = [sys.executable, "-c", PARENT, str(config)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent,
        RerankClient(ended.address, attempts=1) as client,
    ):
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline().strip() == ended.address
            assert client.rerank(QUERY, ["glaciers flow", "a flea lives a year"], TIMEOUT_S).results[0].doc_id == "1"
        finally:
            parent.kill()
        wait_until_unavailable(client)
    (log,) = tmp_path.glob("rerank-serve-*/serve.log")
    assert "shutting down" in log.read_text(encoding="utf-8")
    assert "Traceback" not in log.read_text(encoding="utf-8")


def wait_until_unavailable(client: RerankClient) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            client.list_models(TIMEOUT_S)
        except ServiceError as error:
            if error.code is grpc.StatusCode.UNAVAILABLE:
                return
        time.sleep(0.05)
    raise AssertionError("the service still answers")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_service(number: signal.Signals) -> None:
    config = load_config(None, models=[{"name": "identity", "ranker": "identity"}], listen="127.0.0.1:0", device="cpu")
    addresses: list[str] = []

    def announce(address: str) -> None:
        addresses.append(address)
        os.kill(os.getpid(), number)

    asyncio.run(serve(config, announce, lambda: config))
    with RerankClient(addresses[0], attempts=1) as client, pytest.raises(ServiceError) as caught:
        client.list_models(TIMEOUT_S)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
def test_sighup_reads_keys_and_limits_again_and_ctrl_c_ends_the_service_without_an_error(tmp_path: Path) -> None:
    """gRPC logged the socket that stopped listening: "E1122 … Failed accept4"."""
    config, keys = tmp_path / "config.yaml", tmp_path / "keys.yaml"
    settings = {"models": [{"name": "identity", "ranker": "identity"}], "listen": "127.0.0.1:0", "keys": str(keys)}
    config.write_text(yaml.safe_dump(settings | {"device": "cpu"}))
    credentials = Credentials(api_key=add_key(keys, "a", CallerLimits()))
    with started(config) as service, RerankClient(service.address, credentials) as client:
        assert len(client.rerank("q", ["1", "2"], TIMEOUT_S).results) == 2
        config.write_text(yaml.safe_dump(settings | {"device": "cpu", "limits": {"max_candidates": 1}}))
        service.process.send_signal(signal.SIGHUP)
        while "limits read again" not in (line := service.log.readline()):
            assert line, "the service has ended"
        with pytest.raises(ServiceError, match="2 candidates"):
            client.rerank("q", ["1", "2"], TIMEOUT_S)
        service.process.send_signal(signal.SIGINT)
        _, log = service.process.communicate(timeout=TIMEOUT_S)
    assert service.process.returncode == 0
    assert "shutting down" in log
    assert "accept4" not in log
    assert not [line for line in log.splitlines() if line.startswith("E")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"models": [{"name": "it", "ranker": "first", "path": "FOLDER"}]}, CheckpointError, "FOLDER.*: "),
        ({"listen": "256.0.0.1:0"}, ConfigError, "cannot listen on 256.0.0.1:0"),
    ],
)
def test_process_that_does_not_start_says_why(
    tmp_path: Path, settings: dict[str, object], error: type[RerankError], message: str
) -> None:
    folder = tmp_path / "FOLDER"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").touch()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings).replace("FOLDER", str(folder)), encoding="utf-8")
    config = load_config(tmp_path / "config.yaml", device="cpu")
    with pytest.raises(error, match=rf"(?s)the service did not start:.*error: .*{message}"), service_process(config):
        pass
