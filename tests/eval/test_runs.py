"""Every system runs on every query once, whatever happens in between; run.trec keeps the order that was measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rerank_eval.datasets import Dataset
from rerank_eval.evaluation import measure_system
from rerank_eval.measures import MetricValues, Response
from rerank_eval.runs import TRACE_FILE, TraceFile, run_systems, system_folder, write_result, write_run
from rerank_eval.systems import System

from rerank.commands.run import PlainConsole
from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel
from rerank.types import Passage, Query, ScoredDoc
from rerank.v1 import rerank_pb2 as pb
from tests.full_disk import largest_file

QUERIES = {name: Query(name, name) for name in ("q0", "q1", "q2", "q3", "q4", "q5")}
LISTS = dict.fromkeys(QUERIES, (Passage("b", "x"), Passage("a", "y")))
NOTHING = {"search": {}, "fingerprint": {}, "qrels": (), "qrels_sha256": "", "notes": (), "index": None, "rel": 2}
JUDGED = [Qrel(query_id, "a", 2) for query_id in QUERIES]
DATASET = Dataset(name="d", title="t", queries=QUERIES, lists=LISTS, judged=JUDGED, is_of_collection=False, **NOTHING)
CONSOLE = PlainConsole(stderr=True)


class RecordingClient:
    """Ranks every list in reverse, with equal scores, and records its query; raises once at the query `fails_at`."""

    def __init__(self, fails_at: str = "") -> None:
        self.queries: list[str] = []
        self._fails_at = fails_at

    def rerank(self, query: str, candidates: Any, **_: Any) -> pb.RerankResponse:
        if query == self._fails_at:
            self._fails_at = ""
            raise ConfigError("gone")
        self.queries.append(query)
        results = [
            pb.RankedCandidate(doc_id=passage.doc_id, score=1.0, original_position=place)
            for place, passage in enumerate(candidates)
        ]
        return pb.RerankResponse(results=results[::-1], execution=pb.Execution(windows=1))


def system(client: Any, name: str = "a", **fingerprint: object) -> System:
    return System(name, client, {}, fingerprint)


def run(systems: list[System], out: Path, concurrency: int = 1, dataset: Dataset = DATASET) -> Any:
    return run_systems(systems, dataset, out, concurrency, CONSOLE)


def rows_without_times(path: Path) -> list[object]:
    rows = [json.loads(line) for line in sorted(path.read_text(encoding="utf-8").splitlines())]
    return [{key: row[key] for key in row if key not in ("wall_ms", "ended_at")} for row in rows]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_resumed_run_ends_with_the_files_of_an_undisturbed_one(tmp_path, concurrency):
    failing, undisturbed = RecordingClient(fails_at="q3"), RecordingClient()
    with pytest.raises(ConfigError, match=r"^a, query 'q3': gone$"):
        run([system(failing)], tmp_path / "resumed", concurrency)
    for client, out in ((failing, tmp_path / "resumed"), (undisturbed, tmp_path / "undisturbed")):
        systems = [system(client)]
        responses = run(systems, out, concurrency)["a"]
        folder = system_folder(systems[0], systems, out)
        found = measure_system(systems[0], responses, DATASET, folder, {"command": "c"})
        assert found.metrics.mean["RR(rel=2)@10"] == 1.0  # in the order of the responses, whose scores are tied
    assert sorted(failing.queries) == list(QUERIES)  # each once
    for name in ("run.trec", "measures.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    traces = [rows_without_times(tmp_path / name / TRACE_FILE) for name in ("resumed", "undisturbed")]
    assert traces[0] == traces[1]


def test_other_settings_are_refused_before_the_first_query(tmp_path):
    """Of a system, of the dataset, or another number of concurrent queries, which changes the latency."""
    run([system(RecordingClient(), name, depth=1) for name in ("a", "b")], tmp_path)
    client = RecordingClient()
    systems = [system(client, "a", depth=1), system(client, "b", depth=1)]
    with pytest.raises(ConfigError, match=r"b/trace.* other settings \(depth: 1 there, 2 now\)"):
        run([systems[0], system(client, "b", depth=2)], tmp_path)
    with pytest.raises(ConfigError, match=r"queries_sha256: not set there, x now"):
        run(systems, tmp_path, dataset=replace(DATASET, fingerprint={"queries_sha256": "x"}))
    with pytest.raises(ConfigError, match=r"load: 1 there, 3 now"):
        run(systems, tmp_path, concurrency=3)
    assert client.queries == []


def test_more_queries_keep_the_responses_of_fewer_and_fewer_those_of_more(tmp_path):
    client = RecordingClient()
    for asked in (["q0", "q1"], [*QUERIES], ["q1", "q2"], [*QUERIES]):
        dataset = replace(DATASET, queries={name: QUERIES[name] for name in asked})
        found = run([system(client)], tmp_path, dataset=dataset)
        assert [response.query_id for response in found["a"]] == asked
    assert client.queries == list(QUERIES)


def test_time_of_a_long_run_is_announced_after_two_queries(tmp_path, monkeypatch, capsys):
    now_s = 0.0

    class SlowClient(RecordingClient):
        def rerank(self, query: str, candidates: Any, **options: Any) -> pb.RerankResponse:
            nonlocal now_s
            now_s += 1000.0 if query == "q0" else 90.0  # the first one loads the model
            if query == "q2":
                announced = "6 queries on this machine: a, some 6 minutes; b, some 0 minutes (or less)"
                assert announced in capsys.readouterr().err
            return super().rerank(query, candidates, **options)

    monkeypatch.setattr("rerank_eval.systems.time.perf_counter", lambda: now_s)
    run_systems([system(SlowClient()), system(RecordingClient(), "b")], DATASET, tmp_path, 1, CONSOLE, " (or less)")


# --- trace files


def response(query_id: str) -> Response:
    execution = {"windows": 1, "strategy": "sliding(20/10)"}
    return Response(query_id, ("a", "b"), (2.0, 1.5), (1, 0), execution, 12.5, 1000.0)


def test_incomplete_last_line_is_dropped(tmp_path):
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


def test_other_settings_are_refused_with_both_values(tmp_path):
    path = tmp_path / "trace.jsonl"
    TraceFile(path, {"depth": 100, "seed": 0}).add(response("q"))
    message = r"1 responses of a run with other settings \(depth: 100 there, 50 now\); choose another"
    with pytest.raises(ConfigError, match=message):
        TraceFile(path, {"depth": 50, "seed": 0})
    with pytest.raises(ConfigError, match="seed: 0 there, not set now"):
        TraceFile(path, {"depth": 100})


@pytest.mark.parametrize("content", ["my notes\n", "[]\n", '{"settings": {}}\n{"query_id": "q1", "reply": {}}\n'])
def test_file_with_something_else_is_refused(tmp_path, content):
    (path := tmp_path / "trace.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"trace\.jsonl is not a trace file; choose another --out"):
        TraceFile(path, {})
    assert path.read_text(encoding="utf-8") == content


def test_response_for_which_there_is_no_space_leaves_no_part_of_a_line(tmp_path):
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
def test_zeros_that_a_power_loss_leaves_at_the_end_are_removed(tmp_path, whole_lines):
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


# --- run.trec


def test_white_space_in_ids_is_percent_encoded_with_a_note(tmp_path):
    run = {"q 1": [ScoredDoc("my\u00a0file.pdf", 1.0), ScoredDoc("a%20b", 0.5)]}
    write_run(tmp_path, run, MetricValues({}, {}), {})
    assert (tmp_path / "run.trec").read_text(encoding="utf-8") == (
        "q%201 Q0 my%C2%A0file.pdf 1 1.0 rerank\nq%201 Q0 a%20b 2 0.5 rerank\n"
    )
    (note,) = json.loads((tmp_path / "measures.json").read_text(encoding="utf-8"))["notes"]
    assert note == "white space in ids is percent-encoded in run.trec, whose columns it separates: q%201"


def test_former_results_are_kept_unless_they_are_the_same(tmp_path):
    path = tmp_path / "report.md"
    assert write_result(path, "one") is None
    assert write_result(path, "one") is None
    assert write_result(path, "two") == tmp_path / "report-1.md"
    written = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert written == {"report.md": "two", "report-1.md": "one"}
