"""The attacks: what they send is allowed, and their table has a row for each."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

from rerank.config import Limits
from rerank.errors import ConfigError
from rerank.protobuf.requests import rerank_request
from rerank.v1 import rerank_pb2 as pb
from scripts.attacks import measure
from scripts.attacks.__main__ import app
from scripts.attacks.measure import ATTACKS
from scripts.attacks.probes import HEADER, Report
from scripts.random_requests import random_request, words


@pytest.mark.parametrize("characters", [0, 1, 7, 50_000])
def test_words_have_exactly_so_many_characters(characters: int) -> None:
    assert len(words(random.Random(0), characters)) == characters


def test_random_requests_are_the_same_for_the_same_seed() -> None:
    first, second = (random_request(random.Random(0), "m", 3, 50, top_n=2) for _ in range(2))
    assert first == second
    assert first != random_request(random.Random(1), "m", 3, 50, top_n=2)
    assert (first.model, first.top_n, [len(each.text) for each in first.candidates]) == ("m", 2, [50] * 3)


def test_report_is_a_row_of_the_table() -> None:
    latency_ms = {"honest": [2.0, 4.0, 6.0], "identity": [1.0], "first": [20.4], "health": [0.6]}
    calls = Counter(OK=3, CANCELLED=1)
    row = Report(latency_ms, unanswered=1, growth_mb=12.3, log_mb_per_min=0.456, calls=calls).row("siege")
    assert row == "| siege | 4/6/6 | 1/1/1 | 20/20/20 | 1/1/1 | 1 | 12 | 0.46 | 1 CANCELLED, 3 OK |"
    assert row.count("|") == HEADER.splitlines()[0].count("|")


def test_unknown_attack_is_refused() -> None:
    result = CliRunner().invoke(app, ["nothing", "siege"])
    assert isinstance(result.exception, ConfigError)
    assert "no attack siege: choose from nothing, cancelled-encoding, " in str(result.exception)


@pytest.mark.parametrize(
    "name", ["cancelled-encoding", "long-passages-to-first", "narrow-tournaments", "large-requests"]
)
def test_worst_requests_are_allowed(name: str) -> None:
    """Otherwise the attack would be refused on arrival."""
    sent: list[pb.RerankRequest] = []

    class Recorder:
        async def rerank(self, message: pb.RerankRequest, _: float) -> str:
            sent.append(message)
            return "OK"

        cancelled_rerank = rerank

    recorder: Any = Recorder()
    asyncio.run(ATTACKS[name](recorder))
    limits = Limits()
    assert sent[0].ByteSize() <= limits.max_message_bytes
    assert rerank_request(sent[0]).checked(limits).candidates


@pytest.mark.slow
def test_attack_is_measured_on_a_service_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its models take no time here."""
    models = [{"name": name, "ranker": "identity"} for name in ("identity", "first", "pe-rank")]
    monkeypatch.setattr(measure, "_SETTINGS", {"models": models})
    result = CliRunner().invoke(app, ["nothing", "--seconds", "0.5"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2].startswith("| nothing | ")
