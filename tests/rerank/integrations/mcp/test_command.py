"""`rerank mcp`: its service, and what a new user gets wrong. The tools: test_mcp.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rerank.access.credentials import Credentials
from rerank.config import ServiceConfig
from rerank.models.encoder import Encoder
from tests.rerank.commands.conftest import Command
from tests.serving import free_port, identity_service

pytest.importorskip("mcp", reason="needs the extra mcp")


def test_mistakes_of_the_command_are_one_line(rerank: Command, tmp_path: Path, encoder: Encoder) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert f"no answer from {address}: is `rerank serve` running there?" in rerank("mcp", "--target", address).error
    assert "not HOST:PORT" in rerank("mcp", "--target", "localhost").error
    assert "leave out --index and --config" in rerank("mcp", "--target", address, "--index", tmp_path).error
    assert str(tmp_path / "none") in rerank("mcp", "--index", tmp_path / "none").error
    (tmp_path / "keys.yaml").write_text("[]")
    with identity_service(encoder, keys=tmp_path / "keys.yaml") as (served, _, _):
        refused = rerank("mcp", "--target", served.address)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith("error: this service needs an API key; send the header")


def test_own_service_has_the_index_and_the_settings_but_no_other_port_and_no_keys(
    rerank: Command, index_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ServiceConfig] = []
    served: list[str] = []

    @contextmanager
    def service_process(config: ServiceConfig) -> Iterator[str]:
        started.append(config)
        yield "its address"

    async def serve_tools(address: str, credentials: Credentials) -> None:
        served.append(address)

    monkeypatch.setattr("rerank.commands.service_process.service_process", service_process)
    monkeypatch.setattr("rerank.integrations.mcp.tools.serve_tools", serve_tools)
    (tmp_path / "keys.yaml").write_text("[]")
    settings = tmp_path / "service.yaml"
    settings.write_text(
        "{models: [{name: identity, ranker: identity}], limits: {max_candidates: 3}, keys: keys.yaml,"
        " listen: 0.0.0.0:1, http: 127.0.0.1:2, telemetry: {metrics: 127.0.0.1:3}, device: cpu}"
    )
    assert rerank("mcp", "--index", index_folder, "--config", settings).code == 0
    (config,) = started
    assert (config.index, config.limits.max_candidates, config.listen) == (index_folder, 3, "127.0.0.1:0")
    assert (config.http, config.keys, config.telemetry.metrics) == (None, None, None)
    assert served == ["its address"]
