"""`rerank rank`, `search`, `models` and `health` on a service: output for people and programs, options and errors."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rerank.client.client import RerankClient
from tests.conftest import PASSAGES
from tests.rerank.commands.conftest import Command
from tests.serving import REQUEST, TIMEOUT_S, Served, held_service

QUERY = "how long does a flea live"
ROWS = [{"doc_id": doc_id, "text": text} for doc_id, (_, text) in PASSAGES.items()]


@pytest.fixture
def rank(rerank: Command, service: Served) -> Command:
    """Runs `rerank rank --query QUERY ARGS…` at the service."""
    return lambda *args, **more: rerank("rank", "--query", QUERY, "--target", service.address, *args, **more)


@pytest.fixture
def search(rerank: Command, service: Served) -> Command:
    """Runs `rerank search ARGS…` at the service."""
    return lambda *args: rerank("search", "--target", service.address, *args)


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    """ROWS, between blank lines."""
    path = tmp_path / "candidates.jsonl"
    path.write_text(f"\n{lines(ROWS)}\n\n", encoding="utf-8")
    return path


def doc_ids(reply: Any) -> list[str]:
    return [result["doc_id"] for result in reply["results"]]


def test_rank_reads_a_file_and_stdin(rank, candidates):
    reply = rank(candidates, "--json").json
    assert doc_ids(rank("-", "--json", stdin=candidates.read_text(encoding="utf-8")).json) == doc_ids(reply)
    assert doc_ids(reply)[0] == "flea"
    assert sorted(doc_ids(reply)) == sorted(PASSAGES)
    assert reply["results"][0]["text"] == PASSAGES["flea"][1]


@pytest.mark.parametrize(("weight", "counted"), [("0.5", 0.5), ("0", 0.0), ("neural", 0.0)])
def test_first_stage_weight_is_sent_to_the_service(rank, candidates, weight, counted):
    """The model's own weights are 0."""
    reply = rank(candidates, "--window-size", 20, "--first-stage-weight", weight, "--json").json
    assert reply["execution"]["first_stage_weight"] == counted


@pytest.mark.parametrize(("flags", "scores"), [([], 2), (["--ordered"], 2), (["--unordered"], 1)])
def test_list_is_ordered_unless_the_command_says_otherwise(rank, flags, scores):
    rows = [{"doc_id": doc_id, "text": "The same text."} for doc_id in "ab"]
    reply = rank("-", "--json", *flags, stdin=lines(rows)).json
    assert len({result["score"] for result in reply["results"]}) == scores


def test_long_documents_are_ranked_by_their_parts(rank):
    filler = "The history of ships is long, as are the names of the seas. " * 30
    rows = [{"doc_id": "long", "text": f"{filler}A flea lives about a year. {filler}"}, *ROWS]
    reply = rank("-", "--max-chunks-per-doc", 20, "--json", stdin=lines(rows)).json
    (span,) = [result["span"] for result in reply["results"] if "span" in result]
    assert "A flea lives about a year" in rows[0]["text"][span["start"] : span["end"]]
    assert "max_chunks_per_doc" in rank("-", "--max-chunks-per-doc", 200, stdin=lines(rows)).err


@pytest.mark.parametrize("command", ["rerank", "search"])
@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ([], "allow_partial", False),
        (["--allow-partial"], "allow_partial", True),
        ([], "on_failure", None),
        (["--on-failure", "first_stage"], "on_failure", "first-stage"),
    ],
)
def test_options_are_sent(rank, search, command, flags, field, value):
    with patch.object(RerankClient, command, autospec=True, side_effect=getattr(RerankClient, command)) as called:
        done = rank("-", *flags, stdin=lines(ROWS)) if command == "rerank" else search(QUERY, *flags)
    assert done.code == 0
    assert called.call_args.kwargs[field] == value


def test_json_has_every_field_under_its_name_in_the_proto(rank, candidates):
    rows = [{"doc_id": "a", "text": "a flea", "score": 1.5}, {"doc_id": "b", "text": "the moon", "score": None}]
    scored = rank("-", "--json", stdin=lines(rows)).json
    assert [result.get("first_stage_score") for result in scored["results"]] == [1.5, None]
    reply = rank(candidates, "--json").json
    assert reply["results"][0].keys() >= {"doc_id", "original_position", "score", "text"}
    assert reply["execution"].keys() >= {"truncated_doc_ids", "reason", "queue_ms", "total_ms"}
    assert reply["execution"]["truncated_doc_ids"] == []


def test_output_for_programs_is_the_table_and_what_ran_is_said_beside_it(rank, candidates):
    outcome = rank(candidates)
    assert outcome.code == 0
    header, *rows = outcome.out.splitlines()
    assert header.startswith("rank\twas\tscore: ")
    assert len(rows) == len(PASSAGES)
    assert re.match(r"1\t1\t-?\d+\.\d{2}\t0\.\d{2}\tflea\t", rows[0]), rows
    assert re.fullmatch(rf"{QUERY}\npe-rank, \S+ · 1 window · \d+ tokens · \d+ ms\n", outcome.err)


def test_models_lists_the_models_and_the_index(rerank, service):
    outcome = rerank("models", "--target", service.address)
    row = r"^pe-rank \*\tpe-rank\tsliding\(20/10\)\t\d+\trelevance\tserved$"
    assert re.search(row, outcome.out, re.MULTILINE), outcome.out
    assert "index: 12 passages of twelve, vectors of " in outcome.err
    reply = rerank("models", "--target", service.address, "--json").json
    assert [model["name"] for model in reply["models"]] == ["pe-rank", "identity", "number"]


def test_terminal_escapes_of_queries_passages_and_errors_are_shown(rerank, service):
    hostile = "\x1b]0;owned\x07\x1b[2J"
    rows = [{"doc_id": "a b", "text": f"a flea {hostile}"}]
    ranked = rerank("rank", "--query", hostile, "--target", service.address, "-", stdin=lines(rows))
    refused = rerank("rank", "--query", "q", "--model", hostile, "--target", service.address, "-", stdin=lines(rows))
    assert (ranked.code, refused.code) == (0, 2)
    printed = "".join([ranked.out, ranked.err, refused.out, refused.err])
    assert "\x1b" not in printed
    assert r"\u001b]0;owned" in printed
    assert "]0;owned" in ranked.out


def test_refusal_of_the_service_is_one_line(rank, candidates):
    assert rank(candidates, "--top-n", "-1").error == "top_n: -1 is negative; use 0 or more"


def test_unreachable_service_is_one_line(rerank, monkeypatch):
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)
    error = rerank("search", "q", "--target", "127.0.0.1:1").error
    assert error.startswith("no answer from 127.0.0.1:1: is `rerank serve` running there? (")


@pytest.mark.parametrize("args", [["rank"], ["search"], ["nonsense"], ["search", "q", "--first-stage", "tfidf"]])
def test_invalid_usage_has_exit_code_2(rerank, args):
    outcome = rerank(*args)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Usage: " in outcome.err


@pytest.mark.parametrize("stage", ["bm25", "dense", "hybrid-rrf", "hybrid_z_score"])
def test_search_prints_json_or_a_table_with_the_first_stage(search, stage):
    reply = search(QUERY, "--first-stage", stage, "--depth", 5, "--top-n", 2, "--json").json
    assert doc_ids(reply)[0] == "flea"
    assert len(reply["results"]) <= 2
    assert reply["first_stage_hits"] <= 5
    shown = search("qqzzx", "--first-stage", stage, "--depth", 5)
    nothing = "bm25 found nothing: no passage has a word of the query; dense and hybrid search read meanings"
    told = nothing if stage == "bm25" else f"5 candidates from {stage.replace('_', '-')}"
    assert told in shown.err.replace("\n", " ")
    assert bool(shown.out) == (stage != "bm25"), "a head without a row"


def test_search_prints_the_feedback_report(search):
    reply = search(QUERY, "--depth", 5, "--feedback", "rocchio", "--json").json
    assert reply["feedback"]["cosine"] < 1
    assert "\nfeedback: " in search(QUERY, "--depth", 5, "--feedback", "kl").err
    assert "\ncosine\t" in search(QUERY, "--depth", 5, "--feedback", "kl", "--verbose").out
    assert "feedback" not in search(QUERY, "--depth", 5).err


@pytest.mark.parametrize("arguments", [(), ("--model", "identity"), ("--liveness",)])
def test_running_service_is_serving(rerank, service, arguments):
    outcome = rerank("health", "--target", service.address, *arguments)
    assert (outcome.code, outcome.out, outcome.err) == (0, "SERVING\n", "")


def test_draining_service_is_alive_but_not_ready(rerank):
    with held_service() as held:
        call = held.start_call(candidates=REQUEST.candidates)
        drained = held.start(held.server.drain(TIMEOUT_S))
        ready, alive = (rerank("health", "--target", held.address, *flags) for flags in ((), ("--liveness",)))
        held.ranker.release.set()
        assert len(call.result(TIMEOUT_S).results) == 2
        drained.result(TIMEOUT_S)
    assert (ready.code, ready.out, alive.code, alive.out) == (1, "NOT_SERVING\n", 0, "SERVING\n")


def test_unknown_model_and_missing_service_are_errors(rerank, service):
    assert rerank("health", "--target", service.address, "--model", "none").code == 2
    assert rerank("health", "--target", "127.0.0.1:1").error.startswith("no answer from 127.0.0.1:1: is `rerank serve`")
