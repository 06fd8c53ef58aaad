"""`rerank ray-serve`: one command starts the service on Ray, and the same command replaces its replicas."""

import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import yaml

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, free_port

pytest.importorskip("ray", reason="needs the extra ray; `make ray-tests` installs it")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

#: Seconds that Ray and a replica may take to start on a busy machine.
START_S = 240


def command(settings: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "rerank.commands.cli", "ray-serve", "--config", str(settings), *arguments]


def write_settings(path: Path, port: int, *names: str) -> Path:
    models = [{"name": name, "ranker": "identity"} for name in names]
    path.write_text(yaml.safe_dump({"listen": f"[::]:{port}", "insecure": True, "models": models}), encoding="utf-8")
    return path


def served_models(port: int) -> list[str]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        reply = RerankServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
    return [model.name for model in reply.models]


def test_service_starts_is_updated_and_ends_on_sigterm(tmp_path):
    port = free_port()
    first = write_settings(tmp_path / "first.yaml", port, "a")
    with subprocess.Popen(command(first), stdout=subprocess.PIPE, text=True) as service:
        try:
            assert any(line == f"listening on [::]:{port}\n" for line in service.stdout)
            assert served_models(port) == ["a"]
            second = write_settings(tmp_path / "second.yaml", port, "a", "b")
            subprocess.run(command(second, "--address", "auto"), check=True, timeout=START_S)
            assert served_models(port) == ["a", "b"]
        finally:
            service.send_signal(signal.SIGTERM)
        assert service.wait(TIMEOUT_S) == 0
