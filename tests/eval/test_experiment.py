"""Every query is asked once of every system, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ir_measures import Qrel
from rerank_eval.answers import Reply
from rerank_eval.experiment import TRACE_FILE, Arm, Judge, collect, collect_under_loads, measure_all
from rerank_eval.measures import TREC_DL

from rerank.commands.display import plain_console
from rerank.errors import ConfigError

QUERIES = [f"q{number}" for number in range(6)]
QRELS = [Qrel(query_id, "a", 2) for query_id in QUERIES]
CONSOLE = plain_console(stderr=True)


class Asked:
    """Answers every query; breaks at `breaks_at`, once."""

    def __init__(self, breaks_at: str = "") -> None:
        self.queries: list[str] = []
        self._breaks_at = breaks_at

    def __call__(self, query_id: str) -> Reply:
        if query_id == self._breaks_at:
            self._breaks_at = ""
            raise ConnectionError("gone")
        self.queries.append(query_id)
        return Reply(("a", "b"), (2.0, 1.0), (1, 0), {"windows": 1})


def evaluate(arms: list[Arm], out: Path, concurrency: int = 1) -> None:
    answers = collect(arms, QUERIES, out, concurrency, CONSOLE)
    measure_all(arms, {concurrency: answers}, Judge(TREC_DL, QRELS), out, {"command": "test"})


def timeless(path: Path) -> list[object]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: row[key] for key in row if key not in ("wall_ms", "ended_at")} for row in rows]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_broken_run_goes_on_and_ends_with_the_same_files(tmp_path: Path, concurrency: int) -> None:
    broken, undisturbed = Asked(breaks_at="q3"), Asked()
    with pytest.raises(ConnectionError):
        evaluate([Arm("a", {}, broken)], tmp_path / "broken", concurrency)
    evaluate([Arm("a", {}, broken)], tmp_path / "broken", concurrency)
    evaluate([Arm("a", {}, undisturbed)], tmp_path / "undisturbed", concurrency)
    for name in ("run.trec", "measures.json"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert timeless(tmp_path / "broken" / TRACE_FILE) == timeless(tmp_path / "undisturbed" / TRACE_FILE)


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    broken = Asked(breaks_at="q3")
    with pytest.raises(ConnectionError):
        evaluate([Arm("a", {}, broken)], tmp_path)
    assert len(broken.queries) >= 3
    evaluate([Arm("a", {}, broken)], tmp_path)
    assert sorted(broken.queries) == QUERIES


def test_several_systems_have_a_folder_each(tmp_path: Path) -> None:
    evaluate([Arm("a", {}, Asked()), Arm("b", {"ranker": "b"}, Asked())], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    measures = json.loads((tmp_path / "b" / "measures.json").read_text(encoding="utf-8"))
    assert measures["settings"] == {"command": "test", "ranker": "b"}
    assert measures["mean"]["nDCG@10"] == 1.0


def test_other_settings_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    evaluate([Arm("a", {"depth": 1}, Asked()), Arm("b", {"depth": 1}, Asked())], tmp_path)
    asked = Asked()
    with pytest.raises(ConfigError, match="other settings"):
        evaluate([Arm("a", {"depth": 1}, asked), Arm("b", {"depth": 2}, asked)], tmp_path)
    assert asked.queries == []


def test_no_queries_leave_empty_files(tmp_path: Path) -> None:
    assert collect([Arm("a", {}, Asked())], [], tmp_path, 1, CONSOLE) == {"a": []}


def test_timed_arms_are_asked_once_more_for_every_load(tmp_path: Path) -> None:
    timed, untimed = Asked(), Asked()
    arms = [Arm("a", {}, timed, is_timed=True), Arm("b", {}, untimed)]
    answers = {1: collect(arms, QUERIES, tmp_path, 1, CONSOLE)}
    answers |= collect_under_loads(arms, QUERIES, tmp_path, [2, 3], CONSOLE)
    results = measure_all(arms, answers, Judge(TREC_DL, QRELS), tmp_path, {})
    assert [list(result.costs) for result in results] == [[1, 2, 3], [1]]
    assert (len(timed.queries), len(untimed.queries)) == (18, 6)
    collect_under_loads(arms, QUERIES, tmp_path, [2, 3], CONSOLE)
    assert len(timed.queries) == 18


def test_times_of_another_load_are_not_mixed_in(tmp_path: Path) -> None:
    evaluate([Arm("a", {}, Asked())], tmp_path, concurrency=1)
    with pytest.raises(ConfigError, match="load: 1 there, 3 now"):
        evaluate([Arm("a", {}, Asked())], tmp_path, concurrency=3)
