"""Trace files: a killed run resumes from them, and only with the settings that it started with."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_eval.trace import RankedList, Response, TraceFile

from rerank.errors import ConfigError
from tests.full_disk import largest_file


def response(query_id: str) -> Response:
    ranking = RankedList(("a", "b"), (2.0, 1.5), (1, 0), {"windows": 1, "strategy": "sliding(20/10)"})
    return Response(query_id, 12.5, 1000.0, ranking)


def test_incomplete_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(path, {})
    file.add(response("q1"))
    file.add(response("q2"))
    path.write_bytes(path.read_bytes()[:-20])
    resumed = TraceFile(path, {})
    assert list(resumed.responses) == ["q1"]
    resumed.add(response("q2"))
    assert list(TraceFile(path, {}).responses) == ["q1", "q2"]
    path.write_text('{"settin', encoding="utf-8")  # the header is written again
    TraceFile(path, {"depth": 1}).add(response("q"))
    assert list(TraceFile(path, {"depth": 1}).responses) == ["q"]


def test_other_settings_are_refused_with_both_values(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    TraceFile(path, {"depth": 100, "seed": 0}).add(response("q"))
    with pytest.raises(
        ConfigError, match=r"1 responses of a run with other settings \(depth: 100 there, 50 now\); choose another"
    ):
        TraceFile(path, {"depth": 50, "seed": 0})
    with pytest.raises(ConfigError, match="seed: 0 there, not set now"):
        TraceFile(path, {"depth": 100})


def test_response_for_which_there_is_no_space_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(path, {})
    file.add(response("q1"))
    complete = path.read_bytes()
    with (
        largest_file(len(complete) + 20),
        pytest.raises(ConfigError, match=r"trace\.jsonl cannot be written: .*; free disk space"),
    ):
        file.add(response("q2"))
    assert path.read_bytes() == complete
    assert TraceFile(path, {}).responses.keys() == file.responses.keys() == {"q1"}
    file.add(response("q2"))
    assert TraceFile(path, {}).responses.keys() == {"q1", "q2"}


@pytest.mark.parametrize("whole_lines", [0, 1, 2])
def test_zeros_that_a_power_loss_leaves_at_the_end_are_removed(tmp_path: Path, whole_lines: int) -> None:
    path = tmp_path / "trace.jsonl"
    for query_id in ("q1", "q2"):
        TraceFile(path, {}).add(response(query_id))
    content = path.read_bytes()
    kept = sum(map(len, content.splitlines(keepends=True)[:whole_lines])) + 10
    path.write_bytes(content[:kept] + bytes(len(content) - kept))
    resumed = TraceFile(path, {})
    assert list(resumed.responses) == ["q1"][: max(whole_lines - 1, 0)]
    resumed.add(response("q2"))
    assert "q2" in TraceFile(path, {}).responses
