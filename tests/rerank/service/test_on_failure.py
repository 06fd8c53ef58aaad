"""`on_failure` over gRPC and HTTP: each failure of the service is an error or an answer, as the caller chooses."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.config import ApiModel, RerankServerSettings
from rerank.rankers.base import Ranker
from rerank.rankers.failed import FailedRanker
from rerank.reranking.load_models import load_remote
from rerank.retrieval.index import Index
from rerank.v1 import rerank_pb2 as pb
from tests.fakes import NumberRanker
from tests.http_client import Reply
from tests.serving import (
    HTTP,
    METRICS,
    REQUEST,
    TIMEOUT_S,
    Served,
    free_port,
    held_service,
    http_service,
    numbered_candidates,
    refusal,
    wait_for,
)

CODES = grpc.StatusCode
FIRST_STAGE, ERROR = pb.ON_FAILURE_FIRST_STAGE, pb.ON_FAILURE_ERROR
#: Nine windows of 20 tokens each.
FIELDS: dict[str, Any] = {
    "query": "q",
    "candidates": numbered_candidates(range(10)),
    "strategy": pb.Strategy(window_size=2, stride=1),
}
QUERY = "how long does a flea live"
TEXTS = [candidate.text for candidate in FIELDS["candidates"]]


@dataclass(frozen=True)
class Failure:
    """How a service fails to rank, and how it is reported."""

    code: grpc.StatusCode
    http_status: int
    reason: str
    words: str


FAILURES = {
    "late": Failure(CODES.DEADLINE_EXCEEDED, 504, "DEADLINE_EXCEEDED", "the deadline came after 0 of 9 windows"),
    "full": Failure(CODES.RESOURCE_EXHAUSTED, 429, "OVERLOADED", "the queue had no room after 0 of 9 windows"),
    "dead": Failure(CODES.UNAVAILABLE, 503, "MODEL_SERVER_UNAVAILABLE", "no inference server answered after 0 of 9"),
    "failed": Failure(CODES.FAILED_PRECONDITION, 400, "SELF_TEST_FAILED", "a model is not served after 0 of 9 windows"),
    "broken": Failure(CODES.INTERNAL, 500, "BUG", "the model failed after 0 of 9 windows of sliding(2/1): internal"),
}


def dead_server() -> Ranker:
    servers = {"kind": "vllm", "url": f"http://127.0.0.1:{free_port()}", "model": "m"}
    return load_remote(ApiModel(name="m", ranker="api", served_by=RerankServerSettings.model_validate(servers)))


#: What a service with this failure ranks by; no caller may read the message of "broken".
RANKERS: dict[str, Callable[[], Any]] = {
    "late": lambda: NumberRanker(free_batches=0),
    "full": lambda: NumberRanker(free_batches=0),
    "dead": dead_server,
    "failed": lambda: FailedRanker("m", NumberRanker().info, "its scores are not finite"),
    "broken": lambda: NumberRanker(scores_of=Mock(side_effect=ValueError("secret of the model"))),
}


@dataclass(frozen=True)
class Failing:
    """A service that fails in this way, and calls of it."""

    served: Served
    failure: Failure

    def rerank(self, **fields: Any) -> pb.RerankResponse:
        return self.served.stub.Rerank(pb.RerankRequest(**FIELDS | fields), timeout=TIMEOUT_S)

    def search(self, **fields: Any) -> pb.RerankResponse:
        return self.served.stub.Search(pb.SearchRequest(query=QUERY, depth=4, **fields), timeout=TIMEOUT_S)

    def post(self, path: str, **body: Any) -> Reply:
        return self.served.http.post(path, {"query": "q", **body})


@pytest.fixture(scope="module", params=FAILURES)
def failing(request: pytest.FixtureRequest, index: Index) -> Iterator[Failing]:
    """A service over `index` with one failure."""
    limits = {"max_request_s": 0.5} if request.param == "late" else {}
    engine = {"max_queue_tokens": 20, "max_batch_tokens": 512}
    settings = {"limits": limits, "engine": engine, "telemetry": METRICS}
    ranker = RANKERS[request.param]()
    with pytest.MonkeyPatch.context() as patch, http_service({"m": ranker}, index, **settings) as served:
        patch.setattr("rerank.types.ANSWER_MARGIN_S", 0.3)
        if request.param == "full":
            running = served.stub.Rerank.future(REQUEST, timeout=1000)  # it does not give way to larger requests
            assert ranker.entered.wait(TIMEOUT_S), running
        try:
            yield Failing(served, FAILURES[request.param])
        finally:
            if isinstance(ranker, NumberRanker):
                ranker.release.set()


def test_failure_is_an_error_unless_an_answer_is_asked_for(failing):
    for fields in ({}, {"on_failure": ERROR}):
        refused = refusal(lambda fields=fields: failing.rerank(**fields))
        assert (refused.code, refused.reason) == (failing.failure.code, failing.failure.reason)
    reply = failing.post("/v2/rerank", documents=TEXTS)
    assert reply.status == failing.failure.http_status
    assert "x-rerank-failure" not in reply.headers


def test_answer_is_the_first_stage_and_names_the_failure(failing):
    reply = failing.rerank(on_failure=FIRST_STAGE, top_n=4, return_passages=True)
    assert [result.doc_id for result in reply.results] == ["d0", "d1", "d2", "d3"]
    assert [result.original_position for result in reply.results] == [0, 1, 2, 3]
    assert reply.results[0].text == TEXTS[0]
    assert (reply.score_kind, reply.results[0].score) == (pb.SCORE_KIND_RANK, 10.0)
    execution = reply.execution
    assert (execution.completeness, execution.failure) == (pb.COMPLETENESS_NONE, failing.failure.reason)
    assert execution.reason.startswith(failing.failure.words)
    assert "secret" not in str(execution)


@pytest.mark.parametrize("failing", ["full", "dead"], indirect=True)
def test_search_gives_what_the_first_stage_found(failing):
    feedback = pb.Feedback(learning_rate=0.05, min_cosine=0.3)
    for fields in ({}, {"feedback": feedback, "first_stage": pb.FIRST_STAGE_DENSE}):
        assert refusal(lambda: failing.search(**fields)).reason == failing.failure.reason  # noqa: B023
        reply = failing.search(on_failure=FIRST_STAGE, **fields)
        assert [result.original_position for result in reply.results] == [0, 1, 2, 3]
        assert (reply.results[0].doc_id, reply.first_stage_hits) == ("flea", 4)
        assert (reply.execution.completeness, reply.execution.failure) == (pb.COMPLETENESS_NONE, failing.failure.reason)
    assert reply.feedback.reason.startswith("the first ranking was not completed: ")


@pytest.mark.parametrize("failing", ["full", "broken"], indirect=True)
@pytest.mark.parametrize(
    ("path", "field"), [("/v1/rerank", "documents"), ("/v2/rerank", "documents"), ("/rerank", "texts")]
)
def test_answer_over_http_has_the_failure_in_a_header(failing, path, field):
    for choice in ("first_stage", "first-stage"):
        reply = failing.post(path, on_failure=choice, ordered=True, **{field: TEXTS})
        assert reply.status == 200
        assert (reply.headers["x-rerank-completeness"], reply.headers["x-rerank-failure"]) == (
            "none",
            failing.failure.reason,
        )
        results = reply.json["results"] if field == "documents" else reply.json
        assert [result["index"] for result in results] == list(range(10))
        name = "relevance_score" if field == "documents" else "score"
        assert {(result[name], result["ranked"]) for result in results} == {(0.0, False)}, "a threshold takes none"
        if field == "documents":
            assert failing.failure.words.partition(" after")[0] in reply.json["meta"]["warnings"][0]


@pytest.mark.parametrize("failing", ["late", "broken"], indirect=True)
def test_answers_are_counted_by_their_reason(failing):

    def counted() -> float:
        return failing.served.metric("rerank_fallbacks_total", model="m", reason=failing.failure.reason)

    before = counted()
    failing.rerank(on_failure=FIRST_STAGE)
    wait_for(lambda: counted() == before + 1)
    assert failing.served.metric("rerank_fallbacks_total") == counted(), "there are no other reasons"


@pytest.mark.parametrize("failing", ["failed"], indirect=True)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"query": " "}, "INVALID_REQUEST"),
        ({"candidates": []}, "INVALID_REQUEST"),
        ({"model": "other"}, "NOT_FOUND"),
        ({"strategy": pb.Strategy(window_size=20_000)}, "INVALID_REQUEST"),
        ({"candidates": [pb.Candidate(doc_id="no such", in_index=True)]}, "NOT_FOUND"),
        ({"on_failure": 7}, "INVALID_REQUEST"),
    ],
    ids=str,
)
def test_mistake_of_the_caller_is_an_error_in_any_case(failing, fields, reason):
    given = {"on_failure": FIRST_STAGE} | fields
    assert refusal(lambda: failing.rerank(**given)).reason == reason


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_http_takes_allow_partial(path, monkeypatch):
    monkeypatch.setattr("rerank.types.ANSWER_MARGIN_S", 19.8)
    with held_service(http=HTTP) as served:
        field = "texts" if path == "/rerank" else "documents"
        body = {"query": "q", field: TEXTS, "allow_partial": True}
        reply = served.http.post(path, body, x_request_timeout_ms="20000")
    assert (reply.status, reply.headers["x-rerank-completeness"]) == (200, "none")
    assert reply.headers["x-rerank-failure"] == "DEADLINE_EXCEEDED"


def test_search_is_answered_before_the_deadline(index, monkeypatch):
    monkeypatch.setattr("rerank.types.ANSWER_MARGIN_S", 29.8)
    asked = {"depth": 4, "on_failure": "first_stage"}
    with held_service(index=index, http=HTTP) as served:
        with RerankClient(served.address, attempts=1) as client:
            reply = client.search(QUERY, 30.0, **asked)
        found = served.http.post("/search", {"query": QUERY, **asked}, x_request_timeout_ms="30000")
    assert [result.original_position for result in reply.results] == [0, 1, 2, 3]
    assert (reply.results[0].doc_id, reply.execution.failure) == ("flea", "DEADLINE_EXCEEDED")
    assert (found.status, found.headers["x-rerank-failure"]) == (200, "DEADLINE_EXCEEDED")


def test_first_stage_that_is_late_is_an_error_in_any_case(index, monkeypatch):
    release = threading.Event()
    with http_service({"m": NumberRanker()}, index, limits={"max_request_s": 0.3}) as served:
        monkeypatch.setattr(Index, "candidates", lambda *_: release.wait(TIMEOUT_S))
        with RerankClient(served.address, attempts=1) as client, pytest.raises(ServiceError) as caught:
            client.search("flea", TIMEOUT_S, on_failure="first_stage")
        release.set()
    assert (caught.value.reason, "in the first stage" in str(caught.value)) == ("DEADLINE_EXCEEDED", True)
