"""Service processes: `rerank serve` that is killed, its successor at the same address, and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from rerank.service import process as process_module
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, refusal, service_process, wait_for

QUERY = "how long does a flea live"
#: Encoding these takes many seconds.
SLOW = [pb.Candidate(doc_id=f"d{number}", text=f"{number} fleas in winter " * 60) for number in range(500)]
REQUEST = pb.RerankRequest(query=QUERY, candidates=SLOW, allow_partial=True)

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


@pytest.fixture
def pe_rank(index_folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Settings of a service that has much to do for a request."""
    model = {"name": "pe-rank", "ranker": "pe-rank", "path": str(checkpoint)}
    return {"models": [model], "index": str(index_folder), "device": "cpu"}


@contextmanager
def call_in_work(address: str) -> Iterator[grpc.Future]:
    """A call that takes many seconds, and has arrived."""
    with grpc.insecure_channel(address) as channel:
        stub = RerankServiceStub(channel)
        call = stub.Rerank.future(REQUEST, timeout=TIMEOUT_S)
        stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)  # answered after the call has arrived
        assert not call.done()
        yield call


@pytest.mark.slow
def test_successor_of_a_killed_service_answers_and_ends_with_its_killed_parent(
    pe_rank: dict[str, Any], tmp_path: Path
) -> None:
    with service_process(tmp_path, **pe_rank) as killed, call_in_work(killed.address) as call:
        killed.process.kill()
        assert refusal(call.result).code is grpc.StatusCode.UNAVAILABLE
    config = tmp_path / "successor.yaml"
    config.write_text(yaml.safe_dump(pe_rank | {"listen": killed.address}))
    command, environment = [sys.executable, "-c", PARENT, str(config)], os.environ | {"TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent,
        RerankClient(killed.address) as client,
    ):
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline().strip() == killed.address
            assert client.search(QUERY, TIMEOUT_S).results[0].doc_id == "flea"
        finally:
            parent.kill()
        wait_for(lambda: is_unavailable(client))
    (log,) = tmp_path.glob("rerank-serve-*/serve.log")
    assert "shutting down" in log.read_text(encoding="utf-8")
    assert "Traceback" not in log.read_text(encoding="utf-8")


def is_unavailable(client: RerankClient) -> bool:
    try:
        client.list_models(TIMEOUT_S)
    except ServiceError as error:
        return error.code is grpc.StatusCode.UNAVAILABLE
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_service(number: signal.Signals) -> None:
    config = load_config(None, models=[{"name": "identity", "ranker": "identity"}], listen="127.0.0.1:0", device="cpu")
    addresses: list[str] = []

    def announce(address: str) -> None:
        addresses.append(address)
        os.kill(os.getpid(), number)

    asyncio.run(serve(config, announce, lambda: config))
    with RerankClient(addresses[0]) as client:
        assert is_unavailable(client)


@pytest.mark.slow
def test_sighup_reads_keys_and_limits_again_and_does_not_end_the_service(tmp_path: Path) -> None:
    key, config = add_key(tmp_path / "keys.yaml", "a", CallerLimits()), tmp_path / "config.yaml"
    with (
        service_process(tmp_path, keys=str(tmp_path / "keys.yaml")) as service,
        RerankClient(service.address, Credentials(api_key=key)) as client,
    ):
        assert len(client.rerank("q", ["1", "2"], TIMEOUT_S).results) == 2
        config.write_text(config.read_text() + "limits: {max_candidates: 1}")
        service.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "limits read again" in service.log)
        with pytest.raises(ServiceError, match="2 candidates"):
            client.rerank("q", ["1", "2"], TIMEOUT_S)
        service.process.terminate()
        assert service.process.wait(TIMEOUT_S) == 0


@pytest.mark.slow
def test_ctrl_c_ends_the_service_without_an_error_in_its_log(tmp_path: Path) -> None:
    """gRPC logged the socket that stopped listening: "E1122 … Failed accept4"."""
    with service_process(tmp_path) as service, RerankClient(service.address) as client:
        client.list_models(TIMEOUT_S)
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(TIMEOUT_S) == 0
    assert "shutting down" in service.log
    assert "accept4" not in service.log
    assert not [line for line in service.log.splitlines() if line.startswith("E")]


@pytest.mark.slow
def test_second_signal_ends_the_service_at_once(pe_rank: dict[str, Any], tmp_path: Path) -> None:
    """It took 36 s, for the calls in flight, and ended with a traceback."""
    with service_process(tmp_path, **pe_rank) as service, call_in_work(service.address) as call:
        service.process.terminate()
        time.sleep(0.5)
        assert not call.done()
        start_s = time.monotonic()
        service.process.terminate()
        assert service.process.wait(TIMEOUT_S) == 1
    assert time.monotonic() - start_s < 5
    assert "second signal received" in service.log
    assert "Traceback" not in service.log


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
    problem = rf"(?s)the service did not start:.*error: .*{message}"
    with pytest.raises(error, match=problem), process_module.service_process(config):
        pass
