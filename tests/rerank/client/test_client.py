"""The blocking and the asyncio client: single calls, many requests in order, and models that are loaded on request."""

import asyncio
import itertools
import json
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from rerank_eval.settings import EvaluationSettings
from rerank_eval.systems import open_systems, parse_systems

from rerank.access.credentials import Credentials
from rerank.access.keys import CallerLimits, add_key
from rerank.client.client import AsyncRerankClient, RerankClient, list_loaded_models
from rerank.client.error_details import ServiceError
from rerank.commands.rank import RankSettings, rank
from rerank.config import FirstModel, IdentityModel, ServiceConfig
from rerank.errors import ConfigError, InvalidRequest, UsageError
from rerank.reranking.load_models import ModelLoader
from rerank.reranking.registry import load_models
from rerank.reranking.reranker import AsyncReranker
from rerank.v1 import rerank_pb2 as pb
from tests.causal_lms import write_causal_lm
from tests.conftest import PASSAGES
from tests.fakes import NumberRanker
from tests.rerank.client.either_client import Client, serving_methods
from tests.serving import TIMEOUT_S, Served, doc_ids, free_port, running_service, serving, shared_encoder
from tests.small_tokenizers import byte_level

PAIRS = [(doc_id, text) for doc_id, (_, text) in PASSAGES.items()]
QUERY = "how long does a flea live"


@pytest.fixture(params=[RerankClient, AsyncRerankClient])
def client(request: pytest.FixtureRequest, service: Served) -> Client:
    return Client(request.param, service.address)


def test_rerank_takes_pairs_and_messages_in_order(client):
    messages = [pb.Candidate(doc_id=doc_id, text=text) for doc_id, text in PAIRS[6:]]
    reply = client.call("rerank", QUERY, [*PAIRS[:6], *messages], timeout_s=TIMEOUT_S)
    assert {PAIRS[result.original_position][0]: result.doc_id for result in reply.results} == {
        doc_id: doc_id for doc_id in PASSAGES
    }
    assert reply.results[0].doc_id == "flea"


@pytest.mark.parametrize("name", ["gpt", "žluťoučký\n🦟", " \x00 "])
def test_message_of_the_service_arrives_unchanged(client, name):
    with pytest.raises(ServiceError) as caught:
        client.call("rerank", QUERY, PAIRS, model=name)
    assert repr(name) in str(caught.value)
    assert "pe-rank, identity, number" in str(caught.value)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    assert caught.value.metadata == {"model": name}


def test_unknown_option_is_refused_before_the_call(client):
    with pytest.raises(InvalidRequest, match="no_such_field: SearchRequest has no such field; fields: query"):
        client.call("search", QUERY, no_such_field=1)
    for method, arguments in {"search": [QUERY], "rerank": [QUERY, PAIRS]}.items():
        with pytest.raises(InvalidRequest, match=r"top_k: .*; did you mean top_n\?"):
            client.call(method, *arguments, top_k=1)


@pytest.mark.parametrize("kind", [RerankClient, AsyncRerankClient])
@pytest.mark.parametrize("target", ["http://127.0.0.1:8080", "https://host/v1", "grpc://h:1", "htp://h:50051"])
def test_url_is_not_a_target(kind, target):
    with pytest.raises(ConfigError, match=r"begins with .*://, but this client speaks gRPC and takes HOST:PORT"):
        kind(target)


async def test_repr_says_target_and_security_without_the_key_and_a_closed_client_what_to_do():
    with RerankClient("127.0.0.1:1") as client:
        assert repr(client) == "<RerankClient of 127.0.0.1:1: plain text, no API key>"
    assert repr(client).startswith("<closed RerankClient")
    with pytest.raises(UsageError, match="this RerankClient is closed; make a new one"):
        client.list_models()
    async with AsyncRerankClient("h:1", Credentials(tls_ca="system", api_key="secret")) as other:
        assert repr(other) == "<AsyncRerankClient of h:1: TLS, API key>"
    with pytest.raises(UsageError, match="this AsyncRerankClient is closed; make a new one"):
        await other.list_models()


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_loopback_is_called_directly_and_a_proxy_of_others_is_named(client, variable, monkeypatch):
    monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    assert client.call("list_models").models
    elsewhere = Client(client.kind, "192.0.2.1:50051", attempts=1)
    with pytest.raises(ServiceError, match=rf"by the proxy of {variable}, unless no_proxy lists 192\.0\.2\.1"):
        elsewhere.call("list_models", timeout_s=5)


@pytest.mark.parametrize("timeout_s", [5e9, 1e10, float("inf"), None])
def test_deadline_that_is_far_away_is_none(client, timeout_s):
    assert client.call("rerank", QUERY, PAIRS, timeout_s=timeout_s).results


@pytest.mark.parametrize("timeout_s", ["5", float("nan"), [5]])
def test_deadline_that_is_no_number_is_refused(client, timeout_s):
    with pytest.raises(InvalidRequest, match=r"timeout_s: .* is not a number of seconds; None is no deadline"):
        client.call("rerank", QUERY, PAIRS, timeout_s=timeout_s)


def test_asyncio_client_is_called_in_a_second_event_loop(service):
    async def made() -> AsyncRerankClient:
        client = AsyncRerankClient(service.address)
        assert (await client.rerank(QUERY, PAIRS)).results
        return client

    client = asyncio.run(made())
    assert asyncio.run(client.rerank(QUERY, PAIRS)).results


@pytest.mark.parametrize(
    ("request_", "options", "error"),
    [
        ("q", {}, TypeError),
        (("q", ["1"], 3), {}, TypeError),
        (("q", [7]), {}, InvalidRequest),
        (("q", "text"), {}, InvalidRequest),
        (("q", ["1"]), {"depth": 3}, InvalidRequest),
    ],
)
def test_mistake_in_the_call_is_raised(service, request_, options, error):
    with RerankClient(service.address) as client, pytest.raises(error):
        [*client.rerank_many([request_], **options)]


def test_batch_of_a_key_with_few_calls_is_answered_without_failures(tmp_path):
    keys = tmp_path / "keys.yaml"
    credentials = Credentials(api_key=add_key(keys, "shop", CallerLimits(max_calls=2)))
    with (
        running_service({"number": NumberRanker()}, keys=keys) as served,
        RerankClient(served.address, credentials) as client,
    ):
        assert [doc_ids(answer) for answer in client.rerank_many([("q", ["1", "2"])] * 50)] == [["1", "0"]] * 50


def test_requests_that_a_restart_has_ended_are_sent_again(monkeypatch):
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)
    calls = itertools.count(1)

    def fail_twice(request: pb.RerankRequest, context: grpc.ServicerContext) -> pb.RerankResponse:
        if next(calls) in (2, 3):
            context.abort(grpc.StatusCode.UNAVAILABLE, "restarted")
        return pb.RerankResponse()

    with serving_methods(Rerank=fail_twice) as target, RerankClient(target) as client:
        assert [doc_ids(answer) for answer in client.rerank_many([("q", ["1"])] * 8)] == [[]] * 8
    assert next(calls) == 11


def test_service_that_cannot_be_reached_ends_the_batch():
    with RerankClient("127.0.0.1:1", attempts=1) as client, pytest.raises(ServiceError, match="no answer from"):
        [*client.rerank_many([("q", ["1"])])]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "qwen3", byte_level())


def lazy_service(path: Path) -> AbstractContextManager[Served]:
    """A service whose model "first" is loaded on request."""
    models = (
        IdentityModel(name="identity", ranker="identity"),
        FirstModel(name="first", ranker="first", path=path, load="request"),
    )
    config = ServiceConfig(models=models, listen="127.0.0.1:0", device="cpu")
    loader = ModelLoader(shared_encoder(), "cpu")
    return serving(AsyncReranker(config, shared_encoder(), None, load_models(models, loader), loader))


def test_only_the_named_models_are_loaded(lm):
    with lazy_service(lm) as served, RerankClient(served.address) as client:
        for names, is_loaded in (((), False), (("", "identity", "missing"), False), (("first",), True)):
            first = list_loaded_models(client, names, TIMEOUT_S).models[1]
            assert (first.is_loaded, len(first.model_revision)) == (is_loaded, 64 * is_loaded)


def test_model_that_cannot_be_loaded_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with (
        lazy_service(tmp_path) as served,
        RerankClient(served.address) as client,
        pytest.raises(ServiceError, match="model 'first' is not served"),
    ):
        list_loaded_models(client, ["first"], TIMEOUT_S)


def test_evaluations_and_ranked_files_name_the_hash(lm, tmp_path):
    requests, out = tmp_path / "requests.jsonl", tmp_path / "ranked.jsonl"
    candidates = [{"docid": "a", "score": 1.0, "doc": {"contents": "a"}}]
    requests.write_text(json.dumps({"query": {"qid": "q", "text": "q"}, "candidates": candidates}))
    with lazy_service(lm) as served:
        settings = EvaluationSettings(out=tmp_path, target=served.address)
        with open_systems(parse_systems(["mine=first"]), settings) as systems:
            revision = str(systems[0].fingerprint["model_revision"])
    with lazy_service(lm) as served:
        rank(RankSettings(batch=requests, out=out, model="first", target=served.address))
    assert json.loads(out.read_text())["settings"]["model_revision"] == revision
    assert len(revision) == 64
