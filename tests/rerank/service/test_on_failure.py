"""`on_failure` over gRPC and HTTP: each failure of the service is an error or an answer, as the caller chooses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.config import ApiModel, RerankServerSettings, TelemetryConfig
from rerank.models.encoder import Encoder
from rerank.rankers.failed import FailedRanker
from rerank.reranking.load_models import load_remote
from rerank.retrieval.index import Index
from rerank.types import Window
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.http_client import HttpClient, Reply, http_service
from tests.rerank.telemetry.test_metrics import value
from tests.serving import TIMEOUT_S, Refusal, Served, free_port, numbered_candidates, refusal, wait_for

CODES = grpc.StatusCode
FIRST_STAGE, ERROR = pb.ON_FAILURE_FIRST_STAGE, pb.ON_FAILURE_ERROR
#: Nine windows of 20 tokens each.
FIELDS: dict[str, Any] = {
    "query": "q",
    "candidates": numbered_candidates(range(10)),
    "strategy": pb.Strategy(window_size=2, stride=1),
}
ORDER = [f"d{place}" for place in range(10)]
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


def fail(window: Window) -> list[float]:
    """Raises what no caller may read."""
    raise ValueError("secret of the model")


def ranker_that_is(name: str) -> Any:
    """The ranker of a service with this failure."""
    if name == "dead":
        servers = {"kind": "vllm", "url": f"http://127.0.0.1:{free_port()}", "model": "m"}
        return load_remote(ApiModel(name="m", ranker="api", served_by=RerankServerSettings.model_validate(servers)))
    if name == "failed":
        return FailedRanker("m", NumberRanker().info, "its scores are not finite")
    return NumberRanker(scores_of=fail) if name == "broken" else NumberRanker(free_batches=0)


@dataclass(frozen=True)
class Service:
    """A service with a failure, and its clients."""

    served: Served
    http: HttpClient
    stub: RerankServiceStub

    def rerank(self, **fields: Any) -> pb.RerankResponse:
        request = pb.RerankRequest(**FIELDS | fields)
        return self.stub.Rerank(request, timeout=TIMEOUT_S)

    def search(self, **fields: Any) -> pb.RerankResponse:
        request = pb.SearchRequest(**{"query": "how long does a flea live", "depth": 4} | fields)
        return self.stub.Search(request, timeout=TIMEOUT_S)

    def refused(self, **fields: Any) -> Refusal:
        return refusal(lambda: self.rerank(**fields))

    def post(self, path: str, **body: Any) -> Reply:
        return self.http.post(path, {"query": "q", **body})


@pytest.fixture(scope="module", params=FAILURES)
def failing(request: pytest.FixtureRequest, encoder: Encoder, index: Index) -> Iterator[tuple[Service, Failure]]:
    """A service over `index` with one failure."""
    limits = {"max_request_s": 0.5} if request.param == "late" else {}
    engine = {"max_queue_tokens": 20, "max_batch_tokens": 512}
    settings = {"limits": limits, "engine": engine, "telemetry": TelemetryConfig(metrics="127.0.0.1:0")}
    ranker = ranker_that_is(request.param)
    with (
        pytest.MonkeyPatch.context() as patch,
        http_service(encoder, {"m": ranker}, index, **settings) as (served, http),
        grpc.insecure_channel(served.address) as channel,
    ):
        patch.setattr("rerank.types.ANSWER_MARGIN_S", 0.3)
        service = Service(served, http, RerankServiceStub(channel))
        if request.param == "full":
            small = {"query": "q", "candidates": FIELDS["candidates"][:2]}  # it does not give way to larger requests
            running = service.stub.Rerank.future(pb.RerankRequest(**small), timeout=1000)
            assert ranker.entered.wait(TIMEOUT_S), running
        try:
            yield service, FAILURES[request.param]
        finally:
            if isinstance(ranker, NumberRanker):
                ranker.release.set()


def check_answer(execution: pb.Execution, failure: Failure) -> None:
    assert (execution.completeness, execution.failure) == (pb.COMPLETENESS_NONE, failure.reason)
    assert execution.reason.startswith(failure.words)
    assert "secret" not in str(execution)


def test_failure_is_an_error_unless_an_answer_is_asked_for(failing: tuple[Service, Failure]) -> None:
    service, failure = failing
    for fields in ({}, {"on_failure": ERROR}):
        refused = service.refused(**fields)
        assert (refused.code, refused.reason) == (failure.code, failure.reason)
    reply = service.post("/v2/rerank", documents=TEXTS)
    assert reply.status == failure.http_status
    assert "x-rerank-failure" not in reply.headers


def test_answer_is_the_first_stage_and_names_the_failure(failing: tuple[Service, Failure]) -> None:
    service, failure = failing
    reply = service.rerank(on_failure=FIRST_STAGE, top_n=4, return_passages=True)
    assert [result.doc_id for result in reply.results] == ORDER[:4]
    assert [result.original_position for result in reply.results] == [0, 1, 2, 3]
    assert reply.results[0].text == TEXTS[0]
    assert (reply.score_kind, reply.results[0].score) == (pb.SCORE_KIND_RANK, 10.0)
    check_answer(reply.execution, failure)


@pytest.mark.parametrize("failing", ["full", "dead"], indirect=True)
def test_search_gives_what_the_first_stage_found(failing: tuple[Service, Failure]) -> None:
    service, failure = failing
    feedback = pb.Feedback(learning_rate=0.05, min_cosine=0.3)
    for fields in ({}, {"feedback": feedback, "first_stage": pb.FIRST_STAGE_DENSE}):
        assert refusal(lambda: service.search(**fields)).reason == failure.reason  # noqa: B023
        reply = service.search(on_failure=FIRST_STAGE, **fields)
        assert [result.original_position for result in reply.results] == [0, 1, 2, 3]
        assert (reply.results[0].doc_id, reply.first_stage_hits) == ("flea", 4)
        assert (reply.execution.completeness, reply.execution.failure) == (pb.COMPLETENESS_NONE, failure.reason)
    assert reply.feedback.reason.startswith("the first ranking was not completed: ")


@pytest.mark.parametrize("failing", ["full", "broken"], indirect=True)
@pytest.mark.parametrize(
    ("path", "field"), [("/v1/rerank", "documents"), ("/v2/rerank", "documents"), ("/rerank", "texts")]
)
def test_answer_over_http_has_the_failure_in_a_header(failing: tuple[Service, Failure], path: str, field: str) -> None:
    service, failure = failing
    for choice in ("first_stage", "first-stage"):
        reply = service.post(path, on_failure=choice, ordered=True, **{field: TEXTS})
        assert reply.status == 200
        assert (reply.headers["x-rerank-completeness"], reply.headers["x-rerank-failure"]) == ("none", failure.reason)
        results = reply.json["results"] if field == "documents" else reply.json
        assert [result["index"] for result in results] == list(range(10))
        name = "relevance_score" if field == "documents" else "score"
        assert {(result[name], result["ranked"]) for result in results} == {(0.0, False)}, "a threshold takes none"
        if field == "documents":
            assert failure.words.partition(" after")[0] in reply.json["meta"]["warnings"][0]


@pytest.mark.parametrize("failing", ["late", "broken"], indirect=True)
def test_answers_are_counted_by_their_reason(failing: tuple[Service, Failure]) -> None:
    service, failure = failing

    def counted() -> float:
        return value(service.served, "rerank_fallbacks_total", model="m", reason=failure.reason)

    before = counted()
    service.rerank(on_failure=FIRST_STAGE)
    wait_for(lambda: counted() == before + 1)
    assert value(service.served, "rerank_fallbacks_total") == counted(), "there are no other reasons"


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
def test_mistake_of_the_caller_is_an_error_in_any_case(
    failing: tuple[Service, Failure], fields: dict[str, Any], reason: str
) -> None:
    service, _ = failing
    assert service.refused(**{"on_failure": FIRST_STAGE} | fields).reason == reason


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_http_takes_allow_partial(encoder: Encoder, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.types.ANSWER_MARGIN_S", 19.8)
    ranker = NumberRanker(free_batches=0)
    with http_service(encoder, {"m": ranker}) as (_, http):
        field = "texts" if path == "/rerank" else "documents"
        reply = http.post(
            path, {"query": "q", field: TEXTS, "allow_partial": True}, **{"x-request-timeout-ms": "20000"}
        )
        ranker.release.set()
    assert (reply.status, reply.headers["x-rerank-completeness"]) == (200, "none")
    assert reply.headers["x-rerank-failure"] == "DEADLINE_EXCEEDED"


def test_search_is_answered_before_the_deadline(
    encoder: Encoder, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rerank.types.ANSWER_MARGIN_S", 29.8)
    ranker = NumberRanker(free_batches=0)
    with http_service(encoder, {"m": ranker}, index) as (served, http):
        with RerankClient(served.address, attempts=1) as client:
            reply = client.search("how long does a flea live", 30.0, depth=4, on_failure="first_stage")
        body = {"query": "how long does a flea live", "depth": 4, "on_failure": "first_stage"}
        found = http.post("/search", body, **{"x-request-timeout-ms": "30000"})
        ranker.release.set()
    assert [result.original_position for result in reply.results] == [0, 1, 2, 3]
    assert (reply.results[0].doc_id, reply.execution.failure) == ("flea", "DEADLINE_EXCEEDED")
    assert (found.status, found.headers["x-rerank-failure"]) == (200, "DEADLINE_EXCEEDED")


def test_first_stage_that_is_late_is_an_error_in_any_case(
    encoder: Encoder, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    with http_service(encoder, {"m": NumberRanker()}, index, limits={"max_request_s": 0.3}) as (served, _):
        monkeypatch.setattr(Index, "candidates", lambda *_: release.wait(TIMEOUT_S))
        with RerankClient(served.address, attempts=1) as client, pytest.raises(ServiceError) as caught:
            client.search("flea", TIMEOUT_S, on_failure="first_stage")
        release.set()
    assert (caught.value.reason, "in the first stage" in str(caught.value)) == ("DEADLINE_EXCEEDED", True)
