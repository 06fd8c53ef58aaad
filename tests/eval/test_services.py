"""Evaluations over several services on real sockets: what each is asked, and what happens when one does not answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from rerank_eval import beir, trec_dl
from rerank_eval.services import Services
from typer.testing import Result

from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceServicer
from tests.eval.data import call, evaluate, graded_requests, judged_collection, read_json
from tests.fakes import HeldRanker, NumberRanker
from tests.serving import TIMEOUT_S, Served, held_service, reranker_of, serving, serving_servicer

QUERIES, CANDIDATES = 9, 5


@dataclass(frozen=True)
class RunningServices:
    """Services with the model "number", and their rankers."""

    addresses: list[str]
    rankers: list[NumberRanker]


@contextmanager
def running_services(
    encoder: Encoder, count: int, rankers: type[NumberRanker] = NumberRanker
) -> Iterator[RunningServices]:
    with ExitStack() as stack:
        started = [rankers() for _ in range(count)]
        served = [stack.enter_context(serving(reranker_of(encoder, {"number": ranker}))) for ranker in started]
        yield RunningServices([one.address for one in served], started)


@dataclass
class FailingService(RerankServiceServicer):
    """Lists the models of another service, and answers every other call with this status."""

    code: grpc.StatusCode
    listed: pb.ListModelsResponse = field(default_factory=pb.ListModelsResponse)
    calls: int = 0

    def ListModels(self, request: Any, context: Any) -> pb.ListModelsResponse:  # noqa: N802
        return self.listed

    def Rerank(self, request: Any, context: Any) -> None:  # noqa: N802
        self.calls += 1
        context.abort(self.code, "as it was told")

    Search = Rerank


@contextmanager
def closed_port() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)


@pytest.fixture
def requests(tmp_path: Path) -> list[str]:
    """Flags of queries whose best candidate is at another place in each, and the system that is evaluated."""
    places = range(CANDIDATES)
    grades = {f"q{n}": {f"d{place}": (n + place) % CANDIDATES for place in places} for n in range(QUERIES)}
    return [*graded_requests(tmp_path, grades), "--system", "best=first:number"]


def outcome(requests: list[str], out: Path, *options: str) -> Result:
    return call(trec_dl.app, out, *requests, *options)


def results(out: Path) -> tuple[bytes, dict[str, Any], list[Any]]:
    """run.trec, the measures, and the replies in the trace without the times."""
    measures = read_json(out / "measures.json")
    for setting in ("target", "out", "concurrency"):
        del measures["settings"][setting]
    rows = [json.loads(line) for line in (out / "trace.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    replies = [(row["query_id"], row["reply"]["doc_ids"], row["reply"]["scores"]) for row in rows]
    return (out / "run.trec").read_bytes(), measures, replies


def test_results_do_not_depend_on_the_number_of_services(encoder: Encoder, requests: list[str], tmp_path: Path) -> None:
    with running_services(encoder, 3) as running:
        a, b, c = running.addresses
        for out, targets in (("one", [a]), ("two", [f"{a}, {b}"]), ("three", [a, f"{b},{c}"])):
            flags = [text for target in targets for text in ("--target", target)]
            done = outcome(requests, tmp_path / out, *flags)
            assert done.exit_code == 0, done.output
        asked = [len(ranker.ranked) for ranker in running.rankers]
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert results(tmp_path / "three") == results(tmp_path / "one")
    assert results(tmp_path / "one")[1]["mean"]["nDCG@10"] == 1.0
    assert sum(asked) == 3 * QUERIES
    assert min(asked) > 0, "of equally busy services, the one that was asked least is asked"


def test_queries_of_a_service_that_fails_go_to_the_other(encoder: Encoder, requests: list[str], tmp_path: Path) -> None:
    """It is asked once, and then not again for a while."""
    with running_services(encoder, 1) as running, RerankClient(running.addresses[0]) as client:
        broken = FailingService(grpc.StatusCode.UNAVAILABLE, client.list_models())
        with serving_servicer(broken) as address:
            done = outcome(requests, tmp_path / "out", "--target", running.addresses[0], "--target", address)
        assert done.exit_code == 0, done.output
        assert len(running.rankers[0].ranked) == QUERIES
    assert broken.calls == 1
    assert results(tmp_path / "out")[1]["mean"]["nDCG@10"] == 1.0


def test_query_in_flight_goes_to_the_other_service_when_its_own_is_lost(encoder: Encoder) -> None:
    """The lost one has the query already: it ends without waiting for calls."""
    with held_service(encoder) as held, running_services(encoder, 1) as running:
        targets = [held.served.address, *running.addresses]
        with Services(targets) as services, ThreadPoolExecutor(1) as threads:
            answer = threads.submit(services.rerank, "q", ["relevance 1", "relevance 2"], TIMEOUT_S, model="number")
            assert held.ranker.entered.wait(TIMEOUT_S)
            held.served.wait(held.served.server.drain(0.0))
            assert [result.doc_id for result in answer.result(TIMEOUT_S).results] == ["1", "0"]
        assert len(running.rankers[0].ranked) == 1


def test_overloaded_service_leaves_the_query_to_the_other(encoder: Encoder) -> None:
    busy = FailingService(grpc.StatusCode.RESOURCE_EXHAUSTED)
    with (
        serving_servicer(busy) as address,
        running_services(encoder, 1) as running,
        Services([address, *running.addresses]) as services,
    ):
        for _ in range(3):
            assert services.rerank("q", ["relevance 1", "relevance 2"], model="number").results[0].doc_id == "1"
    assert busy.calls == 3, "it may have room by now"


def test_refused_query_is_not_sent_to_the_other_service() -> None:
    refusing = [FailingService(grpc.StatusCode.INVALID_ARGUMENT) for _ in range(2)]
    with ExitStack() as stack:
        addresses = [stack.enter_context(serving_servicer(one)) for one in refusing]
        services = stack.enter_context(Services(addresses))
        with pytest.raises(ServiceError, match="as it was told"):
            services.rerank("q", ["a"])
    assert [one.calls for one in refusing] == [1, 0]


@pytest.mark.usefixtures("quick_retries")
def test_query_that_no_service_answers_ends_with_an_error_after_some_attempts() -> None:
    """Each is asked once, and then one of them as often as its client tries."""
    broken = [FailingService(grpc.StatusCode.UNAVAILABLE) for _ in range(2)]
    with ExitStack() as stack:
        addresses = [stack.enter_context(serving_servicer(one)) for one in broken]
        services = stack.enter_context(Services(addresses))
        with pytest.raises(ServiceError, match=rf"no answer from ({'|'.join(addresses)}): is `rerank serve` running"):
            services.rerank("q", ["a"])
    assert sorted(one.calls for one in broken) == [1, 5]


def test_as_many_queries_are_in_flight_as_there_are_services(
    encoder: Encoder, requests: list[str], tmp_path: Path
) -> None:
    """Each service has one: both models wait at the same time."""
    with running_services(encoder, 2, HeldRanker) as running, ThreadPoolExecutor(1) as threads:
        done = threads.submit(outcome, requests, tmp_path / "out", "--target", ",".join(running.addresses))
        held = [ranker for ranker in running.rankers if isinstance(ranker, HeldRanker)]
        entered = [ranker.entered.wait(TIMEOUT_S) for ranker in held]
        for ranker in held:
            ranker.release.set()
        assert done.result(TIMEOUT_S).exit_code == 0
    assert entered == [True, True]


@pytest.mark.usefixtures("quick_retries")
def test_address_without_a_service_is_named_before_the_first_query(
    encoder: Encoder, requests: list[str], tmp_path: Path
) -> None:
    with running_services(encoder, 1) as running, closed_port() as address:
        done = outcome(requests, tmp_path / "out", "--target", running.addresses[0], "--target", address)
        assert running.rankers[0].ranked == []
    assert isinstance(done.exception, ServiceError)
    assert f"no answer from {address}" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_services_with_other_models_or_another_index_are_refused(
    encoder: Encoder, service: Served, requests: list[str], tmp_path: Path
) -> None:
    with running_services(encoder, 1) as running:
        done = outcome(requests, tmp_path / "out", "--target", f"{running.addresses[0]},{service.address}")
    assert isinstance(done.exception, ConfigError)
    assert "differ in model 'identity', 'number', 'pe-rank', so that results would depend" in str(done.exception)
    with RerankClient(service.address) as client:
        without_index = FailingService(grpc.StatusCode.UNAVAILABLE, client.list_models())
    without_index.listed.ClearField("index")
    with (
        serving_servicer(without_index) as address,
        Services([service.address, address]) as services,
        pytest.raises(ConfigError, match="differ in the index"),
    ):
        services.list_models()


def test_eval_beir_searches_in_several_services(service: Served, beir_folder: Path, tmp_path: Path) -> None:
    """The second address fails, so that the first answers every query."""
    queries = {"1": "the pull of the moon", "2": "the bite of a flea"}
    grades = {"1": {"moon": 1}, "2": {"flea-bite": 1}}
    collection = judged_collection(tmp_path / "twelve", beir_folder / "corpus.jsonl", queries, grades)
    given = ("--collection", collection, "--ranker", "identity", "--first-stage", "dense", "--depth", 5)
    with RerankClient(service.address) as client:
        broken = FailingService(grpc.StatusCode.UNAVAILABLE, client.list_models())
    with serving_servicer(broken) as address:
        for out, targets in (("one", service.address), ("two", f"{service.address},{address}")):
            evaluate(beir.app, tmp_path / out, *given, "--target", targets)
    assert (tmp_path / "two" / "run.trec").read_bytes() == (tmp_path / "one" / "run.trec").read_bytes()
