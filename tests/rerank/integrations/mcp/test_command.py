"""`rerank mcp`: what a new user gets wrong. tests/rerank/integrations/mcp/test_mcp.py has the tools."""

from __future__ import annotations

from pathlib import Path

import pytest

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
