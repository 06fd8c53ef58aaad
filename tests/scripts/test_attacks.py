"""The attacks: what they send is allowed, and their table has a row for each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from typer.testing import CliRunner

from rerank.config import Limits
from rerank.protobuf.messages import rerank_request
from rerank.v1 import rerank_pb2 as pb
from scripts.attacks import __main__ as attacks


@pytest.mark.parametrize("name", ["cancelled-encoding", "long-passages-to-first", "narrow-windows", "large-requests"])
def test_worst_requests_are_allowed(name: str) -> None:
    """Otherwise the attack would be refused on arrival."""
    sent: list[pb.RerankRequest] = []

    class Recorder:
        async def rerank(self, message: pb.RerankRequest, _: float) -> str:
            sent.append(message)
            return "OK"

        cancelled_rerank = rerank

    recorder: Any = Recorder()
    asyncio.run(attacks.ATTACKS[name](recorder))
    limits = Limits()
    assert sent[0].ByteSize() <= limits.max_message_bytes
    assert rerank_request(sent[0]).checked(limits).candidates


@pytest.mark.slow
def test_attack_is_measured_on_a_service_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its models take no time here."""
    models = [{"name": name, "ranker": "identity"} for name in ("identity", "first", "pe-rank")]
    monkeypatch.setattr(attacks, "_SETTINGS", {"models": models})
    result = CliRunner().invoke(attacks.app, ["--only", "nothing", "--seconds", "0.5"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2].startswith("| nothing | ")
