"""The trial script: references, the state that a soak resumes from, and short trials on a service process."""

from __future__ import annotations

import importlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rerank.config import Limits
from rerank.errors import ConfigError
from rerank.service.convert import rerank_call
from rerank.v1 import rerank_pb2 as pb

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script's module, imported as by `python scripts/trial.py`."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("trial")


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
    trial: Any, given: pb.RerankResponse, is_right: bool
) -> None:
    references = importlib.import_module("trials.references")
    reference = references.Reference(pb.RerankRequest(), answer(("a", -0.1), ("b", -0.2)))
    assert reference.is_right(given) is is_right


def test_another_order_is_wrong_where_scores_are_ranks(trial: Any) -> None:
    references = importlib.import_module("trials.references")
    reference = references.Reference(pb.RerankRequest(), answer(("a", 2), ("b", 1), kind="SCORE_KIND_RANK"))
    assert reference.is_right(answer(("a", 2), ("b", 1), kind="SCORE_KIND_RANK"))
    assert not reference.is_right(answer(("b", 2), ("a", 1), kind="SCORE_KIND_RANK"))


def test_messages_are_the_same_for_the_same_seed(trial: Any) -> None:
    references = importlib.import_module("trials.references")
    for made in (references.rerank_messages, references.search_messages):
        assert made(random.Random(0)) == made(random.Random(0))
        assert made(random.Random(0)) != made(random.Random(1))


@pytest.mark.slow
def test_soak_goes_on_where_the_last_run_ended(trial: Any, tmp_path: Path) -> None:
    earlier = {"seconds": 60, "runs": 1, "outcomes": {"patient OK": 9}, "wrong": 0, "samples": [[]]}
    (tmp_path / "soak.json").write_text(json.dumps(earlier))
    result = CliRunner().invoke(trial.app, ["soak", "--seconds", "3", "--rate", "3", "--work", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("63 s in 2 runs: ")
    assert " 0 wrong answers" in result.output


def test_mutated_requests_differ_and_are_the_same_for_the_same_seed(trial: Any) -> None:
    fuzz = importlib.import_module("trials.fuzz")
    references = importlib.import_module("trials.references")
    draw = random.Random(0)
    messages = [*references.rerank_messages(draw), *references.search_messages(draw)]
    made = [[fuzz.mutated(random.Random(seed), message) for seed in range(40)] for message in messages]
    assert made == [[fuzz.mutated(random.Random(seed), message) for seed in range(40)] for message in messages]
    for message, results in zip(messages, made, strict=True):
        methods = {method for method, _ in results}
        assert methods == {f"/rerank.v1.RerankService/{'Search' if 'Search' in type(message).__name__ else 'Rerank'}"}
        assert len({data for _, data in results} - {message.SerializeToString()}) > 20


def test_reports_are_rows_of_their_tables(trial: Any) -> None:
    cancel, restarts = (importlib.import_module(f"trials.{name}") for name in ("cancel", "restarts"))
    overload, load = importlib.import_module("trials.overload"), importlib.import_module("rerank.load_test.open_loop")
    row = cancel.CancelReport(3, 1, Counter({0: 2, 1: 1})).row("pe-rank")
    assert row == "| pe-rank | 3 | 1 | 2 with 0, 1 with 1 |"
    assert row.count("|") == cancel.HEADER.splitlines()[0].count("|")
    ends = Counter({"200": 3, "500": 1, "503": 1, "503 with Retry-After": 2})
    row = restarts.RestartReport(2, Counter(OK=3, UNAVAILABLE=1, INTERNAL=1), ends).row("SIGTERM")
    ends_row = "3 200, 1 500, 1 503, 2 503 with Retry-After"
    assert row == f"| SIGTERM | 2 | 1 INTERNAL, 3 OK, 1 UNAVAILABLE | {ends_row} | 3 | 0 | 0 |"
    assert row.count("|") == restarts.HEADER.splitlines()[0].count("|")
    calls = [load.TimedCall(0.0, 0.1, load.Outcome(status)) for status in ("OK", "OK", "RESOURCE_EXHAUSTED")]
    row = overload._row("4x", load.LoadReport(calls, 2.0), 1.25)
    assert row == "| 4x | 1.5 | 1.0 | 80% | 100 | 100 | 1 | 0 | 1 |"
    assert row.count("|") == overload.HEADER.splitlines()[0].count("|")


def test_worst_requests_are_allowed(trial: Any) -> None:
    isolation, limits = importlib.import_module("trials.isolation"), Limits()
    for make in isolation.WORST.values():
        message = make(random.Random(0))
        assert message.ByteSize() <= limits.max_message_bytes
        assert rerank_call(message, limits).candidates


def test_unknown_worst_request_is_refused(trial: Any) -> None:
    result = CliRunner().invoke(trial.app, ["isolation", "--worst", "9"])
    assert isinstance(result.exception, ConfigError)
    assert "--worst 9: choose all, or a number from 1 to 4" in str(result.exception)


@pytest.mark.slow
def test_killed_service_comes_back_over_grpc_and_http(trial: Any) -> None:
    result = CliRunner().invoke(trial.app, ["kill", "--rounds", "2", "--signals", "SIGKILL"])
    assert result.exit_code == 0, result.output
    row = result.output.splitlines()[2]
    assert row.startswith("| SIGKILL | 2 | ")
    assert row.endswith(" | 0 | 0 | 0 |")
    assert " 200" in row


@pytest.mark.slow
def test_isolation_has_a_row_for_each_worst_request(trial: Any) -> None:
    options = ["--models", "identity", "--worst", "4", "--requests", "3"]
    result = CliRunner().invoke(trial.app, ["isolation", *options])
    assert result.exit_code == 0, result.output
    rows = result.output.splitlines()
    assert rows[2].startswith("| identity | identity, tournament of 2 over 1,000 passages | ")
    assert rows[2].endswith(" | 0 |")
    assert rows[2].count("|") == rows[0].count("|")
