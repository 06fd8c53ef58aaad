"""The attacks: what they send is allowed, and their table has a row for each."""

import asyncio
import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from typer.testing import CliRunner

from rerank.config import ApiModel, Limits, load_config
from rerank.protobuf.messages import rerank_request
from rerank.v1 import rerank_pb2 as pb
from scripts.attacks import __main__ as attacks
from scripts.attacks.table import ATTACKS


@pytest.mark.parametrize("name", ["cancelled-encoding", "long-passages-to-first", "narrow-windows", "large-requests"])
def test_worst_requests_are_allowed(name):
    """Otherwise the attack would be refused on arrival."""
    sent: list[pb.RerankRequest] = []

    class Recorder:
        async def rerank(self, message: pb.RerankRequest, timeout_s: float) -> str:
            sent.append(message)
            return "OK"

        async def cancelled_rerank(self, message: pb.RerankRequest, after_s: float) -> str:
            return await self.rerank(message, after_s)

    recorder: Any = Recorder()
    asyncio.run(ATTACKS[name].run(recorder))
    limits = Limits()
    assert sent[0].ByteSize() <= limits.max_message_bytes
    assert rerank_request(sent[0]).checked(limits).candidates


@pytest.mark.parametrize("name", ["endless-continue", "endless-chunk-extensions"])
def test_upstream_answers_some_requests_and_then_without_end(name, tmp_path):
    """Otherwise its model would not be served, and nobody would ask it."""
    prepare = ATTACKS[name].prepare
    assert prepare is not None
    with prepare(tmp_path) as further:
        (model,) = load_config(None, models=further["models"]).models
        assert isinstance(model, ApiModel)
        address = model.served_by.url.removeprefix("http://")
        for _ in range(8):
            with closing(HTTPConnection(address, timeout=10)) as connection:
                connection.request("POST", "/v1/rerank", b'{"documents": ["a", "b"]}')
                assert len(json.loads(connection.getresponse().read())["results"]) == 2
        with closing(HTTPConnection(address, timeout=10)) as connection:
            connection.request("POST", "/v1/rerank", b'{"documents": []}')
            received = 0
            while received < 10 * 2**20:
                piece = connection.sock.recv(2**16)
                assert piece
                received += len(piece)


@pytest.mark.slow
def test_attack_is_measured_on_a_service_of_its_own(monkeypatch):
    """Its models take no time here."""
    models = [{"name": name, "ranker": "identity"} for name in ("identity", "first", "pe-rank")]
    monkeypatch.setattr(attacks, "_SETTINGS", {"models": models})
    result = CliRunner().invoke(attacks.app, ["--only", "nothing", "--seconds", "0.5"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2].startswith("| nothing | ")
