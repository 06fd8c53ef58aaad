"""Every system runs on every query once, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rerank_eval.evaluation import measure_variants
from rerank_eval.measures import Evaluator, measures_from
from rerank_eval.runner import TRACE_FILE, Variant, run_variants
from rerank_eval.trace import RankedList

from rerank.commands.run import PlainConsole
from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel

QUERIES = [f"q{number}" for number in range(6)]
QRELS = [Qrel(query_id, "a", 2) for query_id in QUERIES]
CONSOLE = PlainConsole(stderr=True)


class RecordingSystem:
    """Ranks every query and records it; raises once at the query `fails_at`."""

    def __init__(self, fails_at: str = "") -> None:
        self.queries: list[str] = []
        self._fails_at = fails_at

    def __call__(self, query_id: str) -> RankedList:
        if query_id == self._fails_at:
            self._fails_at = ""
            raise ConfigError("gone")
        self.queries.append(query_id)
        return RankedList(("a", "b"), (2.0, 1.0), (1, 0), {"windows": 1})


def evaluate(variants: list[Variant], out: Path, load: int = 1) -> None:
    responses = run_variants(variants, QUERIES, out, load, CONSOLE)
    measure_variants(variants, responses, Evaluator(measures_from(2), QRELS), out, {"command": "test"})


def rows_without_times(path: Path) -> list[object]:
    rows = [json.loads(line) for line in sorted(path.read_text(encoding="utf-8").splitlines())]
    return [{key: row[key] for key in row if key not in ("wall_ms", "ended_at")} for row in rows]


@pytest.mark.parametrize("load", [1, 3])
def test_resumed_run_ends_with_the_files_of_an_undisturbed_one(tmp_path: Path, load: int) -> None:
    failing, undisturbed = RecordingSystem(fails_at="q3"), RecordingSystem()
    with pytest.raises(ConfigError, match=r"^a, query 'q3': gone$"):
        evaluate([Variant("a", {}, failing)], tmp_path / "resumed", load)
    evaluate([Variant("a", {}, failing)], tmp_path / "resumed", load)
    assert sorted(failing.queries) == QUERIES  # each once
    evaluate([Variant("a", {}, undisturbed)], tmp_path / "undisturbed", load)
    for name in ("run.trec", "measures.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert rows_without_times(tmp_path / "resumed" / TRACE_FILE) == rows_without_times(
        tmp_path / "undisturbed" / TRACE_FILE
    )


def test_other_settings_are_refused_before_the_first_query(tmp_path: Path) -> None:
    evaluate([Variant(name, {"depth": 1}, RecordingSystem()) for name in ("a", "b")], tmp_path)
    system = RecordingSystem()
    with pytest.raises(ConfigError, match="other settings"):
        evaluate([Variant("a", {"depth": 1}, system), Variant("b", {"depth": 2}, system)], tmp_path)
    assert system.queries == []


def test_more_queries_keep_the_responses_of_fewer_and_fewer_those_of_more(tmp_path: Path) -> None:
    system = RecordingSystem()
    for asked in (QUERIES[:2], QUERIES, QUERIES[1:3], QUERIES):
        found = run_variants([Variant("a", {}, system)], asked, tmp_path, 1, CONSOLE)
        assert [response.query_id for response in found["a"]] == asked
    assert system.queries == QUERIES


def test_time_of_a_long_run_is_announced_after_two_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s, system = 0.0, RecordingSystem()

    def slow(query_id: str) -> RankedList:
        nonlocal now_s
        now_s += 1000.0 if query_id == "q0" else 90.0  # the first one loads the model
        if query_id == "q2":
            assert (
                "6 queries on this machine: a, some 6 minutes; b, some 0 minutes (or less)" in capsys.readouterr().err
            )
        return system(query_id)

    monkeypatch.setattr("rerank_eval.runner.time.perf_counter", lambda: now_s)
    run_variants([Variant("a", {}, slow), Variant("b", {}, system)], QUERIES, tmp_path, 1, CONSOLE, " (or less)")
