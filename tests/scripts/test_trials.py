"""The trials: right and wrong answers, their tables, and each for real on a service of models that take no time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rerank.config import Limits
from rerank.errors import ConfigError
from rerank.protobuf.requests import rerank_request
from rerank.v1 import rerank_pb2 as pb
from scripts.service import Service
from scripts.trials import attack, fuzz, probes, restarts, soak
from scripts.trials.__main__ import app
from scripts.trials.references import Reference, rerank_messages, search_messages


@pytest.fixture
def in_this_process(running: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trials find the service running."""
    for trial in (attack, fuzz, soak):
        monkeypatch.setattr(trial, "running_service", lambda *_, **__: nullcontext(running))


def table_of(*arguments: str) -> list[str]:
    """The lines that a trial prints."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def answer(*scores: tuple[str, float], kind: str = "SCORE_KIND_WINDOW_LOG_PROB") -> pb.RerankResponse:
    results = [pb.RankedCandidate(doc_id=doc_id, score=score) for doc_id, score in scores]
    return pb.RerankResponse(results=results, score_kind=kind)


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        (answer(("a", -0.1), ("b", -0.2)), True),
        (answer(("b", -0.199), ("a", -0.101)), True),
        (answer(("a", -0.1), ("b", -0.3)), False),
        (answer(("a", -0.1)), False),
        (answer(("a", -0.1), ("c", -0.2)), False),
        (answer(("a", -0.1), ("b", -0.2), kind="SCORE_KIND_RANK"), False),
    ],
)
def test_answer_is_right_if_passages_and_scores_are_those_of_the_reference(
    given: pb.RerankResponse, is_right: bool
) -> None:
    assert Reference(pb.RerankRequest(), answer(("a", -0.1), ("b", -0.2))).is_right(given) is is_right


def test_another_order_is_wrong_where_scores_are_ranks() -> None:
    reference = Reference(pb.RerankRequest(), answer(("a", 2), ("b", 1), kind="SCORE_KIND_RANK"))
    assert reference.is_right(answer(("a", 2), ("b", 1), kind="SCORE_KIND_RANK"))
    assert not reference.is_right(answer(("b", 2), ("a", 1), kind="SCORE_KIND_RANK"))


def test_messages_are_the_same_for_the_same_seed() -> None:
    for made in (rerank_messages, search_messages):
        assert made(random.Random(0)) == made(random.Random(0))
        assert made(random.Random(0)) != made(random.Random(1))


def test_mutated_requests_differ_and_are_the_same_for_the_same_seed() -> None:
    draw = random.Random(0)
    messages = [*rerank_messages(draw), *search_messages(draw)]
    made = [[fuzz.mutated(random.Random(seed), message) for seed in range(40)] for message in messages]
    assert made == [[fuzz.mutated(random.Random(seed), message) for seed in range(40)] for message in messages]
    for message, results in zip(messages, made, strict=True):
        methods = {method for method, _ in results}
        assert methods == {f"/rerank.v1.RerankService/{'Search' if 'Search' in type(message).__name__ else 'Rerank'}"}
        assert len({data for _, data in results} - {message.SerializeToString()}) > 20


def test_reports_are_rows_of_their_tables() -> None:
    calls = Counter(OK=3, CANCELLED=1)
    latency_ms = {"identity": [1.0, 3.0, 5.0], "default": [20.4], "health": [0.6]}
    attacked = probes.Report(latency_ms, [2.0, 4.0], unanswered=1, growth_mb=12.3, log_mb_per_min=0.456, calls=calls)
    ends = Counter({"200": 3, "500": 1, "503": 1, "503 with Retry-After": 2})
    restarted = restarts.RestartReport(2, Counter(OK=3, UNAVAILABLE=1, INTERNAL=1), ends)
    rows = {
        attack.HEADER: (
            attacked.row("siege"),
            "siege | 3/4/4 | 3/5/5 | 20/20/20 | 1/1/1 | 1 | 12 | 0.46 | 1 CANCELLED, 3 OK",
        ),
        restarts.HEADER: (
            restarted.row("SIGTERM"),
            "SIGTERM | 2 | 1 INTERNAL, 3 OK, 1 UNAVAILABLE | 3 200, 1 500, 1 503, 2 503 with Retry-After | 3 | 0 | 0",
        ),
    }
    for header, (row, expected) in rows.items():
        assert row == f"| {expected} |"
        assert row.count("|") == header.splitlines()[0].count("|")


def test_unknown_attack_is_refused() -> None:
    result = CliRunner().invoke(app, ["attack", "nothing,siege"])
    assert isinstance(result.exception, ConfigError)
    assert "no attack siege: choose all, or some of " in str(result.exception)
    assert "nothing,cancelled-encoding," in str(result.exception)


@pytest.mark.parametrize(
    "name",
    [
        *("cancelled-encoding", "long-passages-to-pe-rank", "long-passages-to-first", "many-windows-to-first"),
        *("narrow-tournaments", "large-requests"),
    ],
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
    asyncio.run(attack.ATTACKS[name](recorder, random.Random(0)))
    limits = Limits()
    assert sent[0].ByteSize() <= limits.max_message_bytes
    assert rerank_request(sent[0]).checked(limits).candidates


@pytest.mark.slow
def test_attack_is_a_row_of_the_table(in_this_process: None) -> None:
    assert table_of("attack", "nothing", "--seconds", "0.5")[2].startswith("| nothing | ")


@pytest.mark.slow
def test_soak_goes_on_where_the_last_run_ended(in_this_process: None, index_folder: Path, tmp_path: Path) -> None:
    earlier = {"seconds": 60, "runs": 1, "outcomes": {"patient OK": 9}, "wrong": 0, "samples": [[]]}
    (tmp_path / "soak.json").write_text(json.dumps(earlier))
    (tmp_path / "index").symlink_to(index_folder)
    first, *_ = table_of("soak", "--seconds", "2", "--rate", "5", "--work", str(tmp_path))
    assert first.startswith("62 s in 2 runs: ")
    assert " 0 wrong answers" in first


@pytest.mark.slow
def test_mutated_requests_change_no_answer(in_this_process: None, index_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "index").symlink_to(index_folder)
    mutated, garbage, changed = table_of("fuzz", "--requests", "40", "--garbage", "10", "--work", str(tmp_path))
    assert mutated.startswith("40 mutated requests: ")
    assert garbage.startswith("10 garbage: ")
    assert changed.startswith("0 changed answers; ")


@pytest.mark.slow
def test_service_is_killed_under_load_over_grpc_and_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "_MODELS", [{"name": name, "ranker": "identity"} for name in ("identity", "pe-rank")])
    row = table_of("kill", "--rounds", "1", "--signals", "SIGKILL")[2]
    assert row.startswith("| SIGKILL | 1 | ")
    assert row.endswith(" | 0 | 0 | 0 |")
    assert " 200" in row
