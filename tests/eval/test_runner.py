"""Every system runs on every query once, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rerank_eval.measures import Evaluator, trec_dl
from rerank_eval.results import measure_variants
from rerank_eval.runner import TRACE_FILE, Variant, run_variants
from rerank_eval.trace import RankedList

from rerank.commands.console import PlainConsole
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
            raise ConnectionError("gone")
        self.queries.append(query_id)
        return RankedList(("a", "b"), (2.0, 1.0), (1, 0), {"windows": 1})


def evaluate(variants: list[Variant], out: Path, load: int = 1) -> None:
    responses = run_variants(variants, QUERIES, out, load, CONSOLE)
    measure_variants(variants, responses, Evaluator(trec_dl(), QRELS), out, {"command": "test"})


def rows_without_times(path: Path) -> list[object]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: row[key] for key in row if key not in ("wall_ms", "ended_at")} for row in rows]


@pytest.mark.parametrize("load", [1, 3])
def test_resumed_run_ends_with_the_files_of_an_undisturbed_one(tmp_path: Path, load: int) -> None:
    failing, undisturbed = RecordingSystem(fails_at="q3"), RecordingSystem()
    with pytest.raises(ConnectionError):
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
