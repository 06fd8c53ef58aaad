"""Service processes: `rerank serve` that is killed, its successor at the same address, and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
import yaml

from rerank.access.callers import CallerLimits
from rerank.access.credentials import Credentials
from rerank.access.key_file import add_key
from rerank.client.client import RerankClient, ServiceError
from rerank.config import load_config
from rerank.errors import CheckpointError, ConfigError, RerankError
from rerank.grpc.server import serve
from rerank.service.process import service_process
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
from rerank.service.process import service_process

with service_process(load_config(Path(sys.argv[1]))) as address:
    print(address, flush=True)
    input()
"""


def write_config(folder: Path, index: Path, checkpoint: Path, listen: str) -> Path:
    model = {"name": "pe-rank", "ranker": "pe-rank", "path": str(checkpoint)}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"models": [model], "index": str(index), "listen": listen, "device": "cpu"}))
    return path


@pytest.fixture
def killed_address(tmp_path: Path, index_folder: Path, checkpoint: Path) -> str:
    """The address of a service that was killed while it answered a call."""
    config = write_config(tmp_path, index_folder, checkpoint, "127.0.0.1:0")
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            with grpc.insecure_channel(address) as channel:
                stub = RerankServiceStub(channel)
                call = stub.Rerank.future(pb.RerankRequest(query=QUERY, candidates=SLOW), timeout=TIMEOUT_S)
                stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)  # answered after the call has arrived
                assert not call.done()
                process.kill()
                assert refusal(call.result).code is grpc.StatusCode.UNAVAILABLE
            assert process.wait(TIMEOUT_S) == -signal.SIGKILL
        finally:
            process.kill()
    return address


@pytest.mark.slow
def test_successor_of_a_killed_service_answers_and_ends_with_its_killed_parent(
    killed_address: str, tmp_path: Path, index_folder: Path, checkpoint: Path
) -> None:
    config = write_config(tmp_path, index_folder, checkpoint, killed_address)
    command = [sys.executable, "-c", PARENT, str(config)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent,
        RerankClient(killed_address) as client,
    ):
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline().strip() == killed_address
            assert client.search(QUERY, TIMEOUT_S).results[0].doc_id == "flea"
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
    with RerankClient(addresses[0]) as client, pytest.raises(ServiceError) as caught:
        client.list_models(TIMEOUT_S)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
def test_sighup_reads_keys_and_limits_again_and_does_not_end_the_service(tmp_path: Path) -> None:
    config, keys = tmp_path / "config.yaml", tmp_path / "keys.yaml"
    settings = {"models": [{"name": "identity", "ranker": "identity"}], "listen": "127.0.0.1:0", "keys": str(keys)}
    config.write_text(yaml.safe_dump(settings))
    key = add_key(keys, "a", CallerLimits())
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--config", str(config), "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            with RerankClient(address, Credentials(api_key=key)) as client:
                assert len(client.rerank("q", ["1", "2"], TIMEOUT_S).results) == 2
                config.write_text(yaml.safe_dump(settings | {"limits": {"max_candidates": 1}}))
                process.send_signal(signal.SIGHUP)
                while "limits read again" not in (line := process.stderr.readline()):
                    assert line, "the service has ended"
                with pytest.raises(ServiceError, match="2 candidates"):
                    client.rerank("q", ["1", "2"], TIMEOUT_S)
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_ctrl_c_ends_the_service_without_an_error_in_its_log() -> None:
    """gRPC logged the socket that stopped listening: "E1122 … Failed accept4"."""
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--listen", "127.0.0.1:0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            with RerankClient(address) as client:
                client.list_models(TIMEOUT_S)
                process.send_signal(signal.SIGINT)
                _, log = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "shutting down" in log
    assert "accept4" not in log
    assert not [line for line in log.splitlines() if line.startswith("E")]


@pytest.mark.slow
def test_second_signal_ends_the_service_at_once(tmp_path: Path, index_folder: Path, checkpoint: Path) -> None:
    """It took 36 s, for the calls in flight, and ended with a traceback."""
    config = write_config(tmp_path, index_folder, checkpoint, "127.0.0.1:0")
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            with grpc.insecure_channel(address) as channel:
                stub = RerankServiceStub(channel)
                request = pb.RerankRequest(query=QUERY, candidates=SLOW, allow_partial=True)
                call = stub.Rerank.future(request, timeout=TIMEOUT_S)
                stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)  # answered after the call has arrived
                process.terminate()
                time.sleep(0.5)
                assert not call.done()
                start_s = time.monotonic()
                process.terminate()
                assert process.wait(TIMEOUT_S) == 1
            assert time.monotonic() - start_s < 5
            log = process.stderr.read()
        finally:
            process.kill()
    assert "second signal received" in log
    assert "Traceback" not in log


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
