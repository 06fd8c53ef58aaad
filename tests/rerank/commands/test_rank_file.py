"""`rerank rank --batch`: a file of requests in, a file of rankings out, and a run that goes on after a kill."""

import fcntl
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank.client.client import RerankClient
from rerank.errors import ShuttingDown
from rerank.readers.candidates import read_requests
from rerank.types import Window, WindowRanking
from tests.eval.data import write
from tests.fakes import NumberRanker
from tests.rerank.commands.conftest import Command, Outcome
from tests.serving import running_service

Batch = Callable[..., Outcome]


def request(number: int, passages: int = 3) -> dict[str, Any]:
    texts = [f"relevance {i}" for i in range(passages)]
    docs: list[Any] = [{"text": text, "url": "u"} if i % 2 else text for i, text in enumerate(texts)]
    candidates = [{"docid": f"d{i}", "score": -i, "doc": doc, "rank": i} for i, doc in enumerate(docs)]
    return {"query": {"qid": number, "text": f"query {number}"}, "candidates": candidates, "source": "mine"}


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_service({"number": NumberRanker(), "other": NumberRanker()}) as served:
        yield served.address


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """The file of 20 requests, and the file of the rankings."""
    write(tmp_path / "requests.jsonl", *map(request, range(20)))
    return tmp_path / "requests.jsonl", tmp_path / "ranked.jsonl"


@pytest.fixture
def batch(rerank: Command, address: str, paths: tuple[Path, Path]) -> Batch:
    """Runs `rerank rank --batch REQUESTS --out RANKED ARGS…`."""
    requests, out = paths
    return lambda *args: rerank("rank", "--batch", requests, "--out", out, "--target", address, *args)


def test_each_line_is_its_request_in_the_new_order(batch, paths):
    assert batch("--top-n", "2") == Outcome(0, "", f"{paths[1]}: 20 of 20 requests are ranked\n")
    rows = read(paths[1])
    assert [row["query"]["qid"] for row in rows] == [*range(20)]
    row = rows[7]
    assert [candidate["docid"] for candidate in row["candidates"]] == ["d2", "d1"]
    assert row["candidates"][1]["doc"] == {"text": "relevance 1", "url": "u"}
    assert row["candidates"][0]["score"] > row["candidates"][1]["score"]
    assert (row["source"], row["execution"]["model"]) == ("mine", "number")
    assert len(read_requests(paths[1])) == 20  # so that it can be ranked again


def test_what_replies_warn_of_is_said_once_for_each_kind(rerank, paths):
    """The ranker's warnings differ in their numbers; equal kinds are counted, and the first one is shown."""

    def doubt(window: Window) -> WindowRanking:
        scores = tuple(map(float, range(len(window.passages))))
        return WindowRanking(scores, warning=f"doubts about {window.query.text}")

    with running_service({"doubtful": NumberRanker(scores_of=doubt)}) as served:
        command = ("rank", "--batch", paths[0], "--out", paths[1], "--target", served.address)
        outcome = rerank(*command)
        assert outcome.code == 0
        warning = "warning: doubts about query 0 (20 of 20 queries, the first is 0)"
        assert outcome.out + outcome.err == f"{paths[1]}: 20 of 20 requests are ranked\n{warning}\n"
        assert "warning" not in rerank(*command).err  # nothing was ranked again


def test_name_that_promises_gzip_is_refused(rerank, address, paths):
    out = paths[1].with_name("ranked.jsonl.gz")
    outcome = rerank("rank", "--batch", paths[0], "--out", out, "--target", address)
    assert outcome.code != 0
    assert "the file is plain text; give" in outcome.err
    assert not out.exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that are sent to the service."""
    queries, send = list[str](), RerankClient.rerank_many

    def watched(self: RerankClient, requests: Any, **options: Any) -> Any:
        pairs = [*requests]
        queries.extend(query for query, _ in pairs)
        return send(self, pairs, **options)

    monkeypatch.setattr(RerankClient, "rerank_many", watched)
    return queries


def partial_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def test_killed_run_goes_on_behind_its_last_whole_line(batch, paths, asked):
    batch()
    lines = paths[1].read_bytes().splitlines(keepends=True)
    paths[1].unlink()
    partial_of(paths[1]).write_bytes(b"".join(lines[:11]) + lines[11][:50])
    asked.clear()
    assert batch().code == 0
    assert asked == [f"query {number}" for number in range(11, 20)]
    assert paths[1].read_bytes().splitlines(keepends=True)[:11] == lines[:11]
    assert [[c["docid"] for c in row["candidates"]] for row in read(paths[1])] == [["d2", "d1", "d0"]] * 20
    assert not partial_of(paths[1]).exists()
    asked.clear()
    finished = f"{paths[1]}: 20 of 20 requests are ranked, 20 of them before\n"
    assert (batch(), asked) == (Outcome(0, "", finished), [])


def test_failed_request_has_its_error_in_its_place(batch, paths):
    """Also a request without candidates, one with the same passage twice, and the same query twice."""
    twice = request(2) | {"candidates": request(2)["candidates"] * 2}
    write(paths[0], request(0), request(1, passages=0), twice, request(0))
    outcome = batch()
    assert outcome.code == 1
    assert outcome.out == 'failed requests: 2; the same command sends them again. Their lines have an "error"\n'
    rows = read(paths[1])
    assert ["error" in row for row in rows] == [False, True, True, False]
    assert (rows[1]["query"], rows[1]["error"]) == (
        {"qid": 1, "text": "query 1"},
        {"code": "INVALID_ARGUMENT", "message": "candidates: the list is empty; send at least one candidate"},
    )
    assert "d0" in rows[2]["error"]["message"]


def test_failed_requests_are_sent_again_also_after_a_kill(batch, paths, asked):
    """The first run fails for two of five; the second one was killed after the first of them."""
    write(paths[0], *(request(number, passages=number % 2) for number in range(5)))
    assert batch().code == 1
    failed = read(paths[1])
    lines = paths[1].read_bytes().splitlines(keepends=True)
    write(paths[0], *(request(number) | {"candidates": request(number, 1)["candidates"]} for number in range(5)))
    asked.clear()
    partial_of(paths[1]).write_bytes(b"".join(lines[:2]))
    assert ["error" in row for row in failed] == [True, False, True, False, True]
    assert batch().code == 0
    assert asked == ["query 0", "query 2", "query 4"]
    assert ["error" in row for row in read(paths[1])] == [False] * 5


@pytest.mark.parametrize(
    ("args", "changed"),
    [
        (("--top-n", "2"), "top_n: not set there, 2 now"),
        (("--model", "other", "--ordered"), "model: number there, other now; ordered: not set there, true now"),
    ],
)
def test_answers_of_other_settings_are_never_kept(batch, paths, args, changed):
    batch()
    before = paths[1].read_bytes()
    outcome = batch(*args)
    assert outcome.code == 2
    problem = f"{paths[1]}:1 was ranked with other settings ({changed}); choose another --out, or remove it"
    assert outcome.error == problem
    assert paths[1].read_bytes() == before
    assert batch("--model", "number").code == 0  # the default model by its name


@pytest.mark.parametrize("flag", ["--model", "--preranker"])
def test_unknown_model_is_refused_before_anything_is_ranked(batch, paths, flag):
    outcome = batch(flag, "none")
    assert (outcome.code, outcome.error) == (2, "model 'none' is not one of number, other")
    assert not [*paths[1].parent.glob("ranked*")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", " has no requests; write one per line"),
        (json.dumps(request(1)) + "\n{broken\n", ":2 is not JSON"),
        ('{"query": "q", "candidates": []}\n', ":1 has a wrong query"),
        ('{"query": {"qid": 1, "text": "q"}}\n', ":1 has no candidates"),
    ],
)
def test_wrong_file_is_refused_before_anything_is_ranked(batch, paths, content, problem):
    paths[0].write_text(content, encoding="utf-8")
    assert batch().error.startswith(f"{paths[0]}{problem}")
    assert not paths[1].exists()


@pytest.mark.parametrize(
    "line",
    ["a line of mine", "[1]", json.dumps(request(0)), json.dumps({"query": {"qid": 5, "text": "other"}, "error": {}})],
)
def test_file_with_something_else_is_left_alone(batch, paths, line):
    paths[1].write_text(f"{line}\n", encoding="utf-8")
    assert batch().error == f"{paths[1]}:1 is not an answer to request 1; choose another --out, or remove it"
    assert paths[1].read_text(encoding="utf-8") == f"{line}\n"


def test_file_that_another_process_writes_is_refused(batch, paths):
    partial = partial_of(paths[1])
    with partial.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert batch().error == f"{partial} is being written by another process; wait for its end"


def test_folder_of_the_rankings_is_made_or_its_problem_named(rerank, address, paths):
    args = ("rank", "--batch", paths[0], "--target", address, "--out")
    assert rerank(*args, paths[1].parent / "new" / "ranked.jsonl").code == 0
    assert rerank(*args, paths[0] / "ranked.jsonl").error.endswith("; choose another --out")


def test_lost_service_leaves_what_is_written(batch, paths, monkeypatch):
    def lost(self: RerankClient, requests: Any, **options: Any) -> Iterator[Any]:
        yield from send(self, itertools.islice(requests, 3), **options)
        raise ShuttingDown("the service is gone")

    send = RerankClient.rerank_many
    monkeypatch.setattr(RerankClient, "rerank_many", lost)
    outcome = batch()
    assert outcome.code == 3
    assert "3 of 20 requests are ranked; the same command ranks the others\n" in outcome.err
    assert len(read(partial_of(paths[1]))) == 3
