"""`rerank loadtest`: its figures, its arguments, and a load in multiples of the capacity."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rerank.commands import loadtest
from rerank.commands.cli import app
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from tests.fakes import NumberRanker
from tests.serving import reranker_of, serving


def test_load_at_a_rate_or_a_multiple_of_the_capacity_prints_its_figures(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadtest, "_CAPACITY_S", 0.5)
    with serving(reranker_of(encoder, {"number": NumberRanker()})) as served:
        arguments = ["loadtest", "--target", served.address, "--seconds", "1", "--passages", "3"]
        at_rate, shown, multiple = (
            CliRunner().invoke(app, [*arguments, *more])
            for more in (["--rate", "50", "--json"], ["--rate", "50"], ["--rate", "0.5x", "--json"])
        )
    assert at_rate.exit_code == shown.exit_code == multiple.exit_code == 0, (at_rate.output, shown.output)
    figures = json.loads(at_rate.output)
    assert figures["statuses"] == {"OK": round(figures["goodput_per_s"])}
    assert figures["offered_per_s"] == figures["goodput_per_s"]
    assert figures["capacity_per_s"] is None
    assert 0 < figures["latency_ms"]["p50"] <= figures["latency_ms"]["p99.9"]
    assert "goodput" in shown.output
    assert "p99 of answers" in shown.output
    figures = json.loads(multiple.output)
    assert math.isclose(figures["offered_per_s"], 0.5 * figures["capacity_per_s"], rel_tol=0.5)


@pytest.mark.parametrize("rate", ["0", "0x", "-1", "x", "2X", "fast", ""])
def test_unusable_rate_is_refused(rate: str) -> None:
    result = CliRunner().invoke(app, ["loadtest", f"--rate={rate}"])
    assert isinstance(result.exception, ConfigError)
    assert "give requests per second, such as 20, or 2x the capacity" in str(result.exception)


def test_capacity_of_a_service_that_is_not_there_cannot_be_measured() -> None:
    result = CliRunner().invoke(app, ["loadtest", "--target", "127.0.0.1:1", "--seconds", "1"])
    assert isinstance(result.exception, ConfigError)
    assert "127.0.0.1:1 answers UNAVAILABLE" in str(result.exception)


def test_file_of_requests_must_be_there_and_have_one(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    assert isinstance(CliRunner().invoke(app, ["loadtest", "--requests", str(file)]).exception, CollectionError)
    file.write_text("")
    result = CliRunner().invoke(app, ["loadtest", "--requests", str(file)])
    assert "the file has no request" in str(result.exception)
