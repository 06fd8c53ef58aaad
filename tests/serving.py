"""Services for tests, in this process but over a real socket, and the errors that their clients see."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import yaml
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from rerank.access.credentials import PLAIN
from rerank.client.client import check_health
from rerank.config import PERankModel, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.names import SERVICE
from rerank.ports.server import RunningServer, running_server
from rerank.rankers.base import Ranker
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.reranker import AsyncReranker
from rerank.retrieval.index import Index
from rerank.types import Query, Ranking, RankOptions
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker, numbered_passages
from tests.http_client import TIMEOUT_S, HttpClient

T = TypeVar("T")
M = TypeVar("M", bound=Message)

#: Settings of an HTTP port, and of metrics, that are free.
HTTP, METRICS = {"listen": "127.0.0.1:0"}, {"metrics": "127.0.0.1:0"}
#: Options of a channel: messages of any size, and a connection that no other channel uses.
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def numbered_candidates(numbers: Sequence[float]) -> list[pb.Candidate]:
    """Candidates d0, d1, … whose relevance is the number in their text."""
    return [pb.Candidate(doc_id=passage.doc_id, text=passage.text) for passage in numbered_passages(numbers)]


def references(*doc_ids: str) -> list[pb.Candidate]:
    """Candidates that are passages of the index."""
    return [pb.Candidate(doc_id=doc_id, in_index=True) for doc_id in doc_ids]


def doc_ids(reply: pb.RerankResponse) -> list[str]:
    return [result.doc_id for result in reply.results]


#: The path of the method, and a small request of it.
RERANK = f"/{SERVICE}/Rerank"
REQUEST = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]))


@dataclass(frozen=True)
class Served:
    """A server that runs on an event loop in another thread, and clients of it. `channel` ends with the server."""

    server: RunningServer
    loop: asyncio.AbstractEventLoop
    channel: grpc.Channel

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def connect(self) -> socket.socket:
        """A connection to the port of gRPC that has sent nothing yet."""
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)

    @property
    def stub(self) -> RerankServiceStub:
        return RerankServiceStub(self.channel)

    @property
    def health(self) -> str:
        """The status of the default model, on a connection of its own."""
        return check_health(self.address, PLAIN, TIMEOUT_S)

    def answers(self) -> bool:
        """True if a small request is ranked; grpc.RpcError if it is refused."""
        return len(self.stub.Rerank(REQUEST, timeout=TIMEOUT_S).results) == 2

    @property
    def http(self) -> HttpClient:
        return HttpClient(self.server.http_address)

    def metrics(self) -> str:
        """The page that Prometheus reads."""
        with urllib.request.urlopen(f"http://{self.server.metrics_address}/metrics", timeout=TIMEOUT_S) as page:
            return page.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; 0 if there is none."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.metrics())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result(TIMEOUT_S)

    def wait_until_idle(self) -> None:
        """Waits until no call is in flight: a call ends, and over HTTP is logged, after its client has the answer."""
        self.wait(self.server.calls.wait_until_idle())

    def wait_for_calls(self, number: int) -> None:
        """Waits until at least this number of calls is in flight."""
        wait_for(lambda: self.server.calls.number >= number)


def wait_for(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Waits until a condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"the condition does not hold after {timeout_s} s"
        time.sleep(0.01)


def rank_once(
    rankers: Mapping[str, Ranker],
    query: str | Query,
    candidates: Sequence[Any],
    options: RankOptions,
    index: Index | None = None,
) -> Ranking:
    """The ranking that a reranker with these models gives, which is opened for this call."""

    async def rank() -> Ranking:
        async with reranker_of(rankers, index) as reranker:
            return await reranker.rerank(query, candidates, options)

    return asyncio.run(rank())


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(reranker: AsyncReranker) -> Iterator[Served]:
    """Serves until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="service", daemon=True)
    thread.start()
    context = running_server(reranker)
    try:
        server = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(TIMEOUT_S)
        try:
            with grpc.insecure_channel(server.address, options=ANY_SIZE) as channel:
                yield Served(server, loop, channel)
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(TIMEOUT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass(frozen=True)
class ServiceProcess:
    """`rerank serve` in a separate process."""

    process: subprocess.Popen[str]
    address: str
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")


@contextmanager
def service_process(folder: Path, program: Sequence[str] = (), **settings: Any) -> Iterator[ServiceProcess]:
    """A service with these settings, written to `config.yaml` of the folder; it is killed when the block ends.

    Args:
        folder: for the files of the settings and the log.
        program: arguments of Python that run `rerank`, if not as usual.
        settings: by default there is only the model identity.
    """
    identity = [{"name": "identity", "ranker": "identity"}]
    config, log = folder / "config.yaml", folder / "serve.log"
    config.write_text(yaml.safe_dump({"models": identity, "listen": "127.0.0.1:0", "device": "cpu"} | settings))
    command = [sys.executable, *(program or ("-m", "rerank.commands.cli")), "serve", "--config", str(config)]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield ServiceProcess(process, process.stdout.readline().removeprefix("listening on ").strip(), log)
        finally:
            process.kill()


def config_for(names: Iterable[str], **settings: Any) -> ServiceConfig:
    """A configuration with models of these names, on a free port."""
    models = tuple(PERankModel(name=name, ranker="pe-rank", window_size=20, first_stage_weight=0.0) for name in names)
    return ServiceConfig(**{"listen": "127.0.0.1:0", "models": models} | settings)


@cache
def shared_encoder() -> Encoder:
    """The default encoder on the CPU, loaded once in a process. It is the fixture `encoder`, too."""
    return Encoder(device="cpu")


def reranker_of(
    rankers: Mapping[str, Ranker] | None = None,
    index: Index | None = None,
    encoder: Encoder | None = None,
    **settings: Any,
) -> AsyncReranker:
    """A reranker over these rankers by model name; the first is the default. Without any, "identity" keeps the order.

    The encoder is the shared one, if none is given.
    """
    rankers = rankers or {"identity": IdentityRanker()}
    config = config_for(rankers, **settings)
    return AsyncReranker(config, encoder or shared_encoder(), index, ModelRegistry(config.models, rankers))


@contextmanager
def running_service(
    rankers: Mapping[str, Ranker] | None = None, index: Index | None = None, **settings: Any
) -> Iterator[Served]:
    """Serves what `reranker_of` makes of these arguments until the block ends."""
    with serving(reranker_of(rankers, index, **settings)) as served:
        yield served


def http_service(
    rankers: Mapping[str, Ranker] | None = None, index: Index | None = None, **settings: Any
) -> AbstractContextManager[Served]:
    """A `running_service` with an HTTP port, too."""
    return running_service(rankers, index, **{"http": HTTP} | settings)


@dataclass(frozen=True)
class HeldService(Served):
    """A service whose only model, "number", waits for `ranker.release`."""

    ranker: NumberRanker

    def start_call(self, **fields: Any) -> grpc.Future:
        """A call that has reached the model and waits there."""
        call = self.stub.Rerank.future(pb.RerankRequest(**{"query": "q"} | fields), timeout=TIMEOUT_S)
        assert self.ranker.entered.wait(TIMEOUT_S)
        return call


@contextmanager
def held_service(
    name: str = "number", free_batches: int = 0, index: Index | None = None, **settings: Any
) -> Iterator[HeldService]:
    """A HeldService with the model `name`; `free_batches` batches run without waiting."""
    ranker = NumberRanker(free_batches=free_batches)
    with running_service({name: ranker}, index, **settings) as served:
        try:
            yield HeldService(served.server, served.loop, served.channel, ranker)
        finally:
            ranker.release.set()


class EndOfCall(grpc.RpcError):
    """The end of a call with this status, without details."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self.code, self.details, self.trailing_metadata = (lambda: status), (lambda: "words"), tuple


@dataclass(frozen=True)
class Refusal:
    """An error of a call: its status and the google.rpc details."""

    code: grpc.StatusCode
    message: str
    status: status_pb2.Status

    def detail(self, kind: type[M]) -> M:
        return detail(self.status, kind)

    @property
    def fields(self) -> list[str]:
        return [violation.field for violation in self.detail(error_details_pb2.BadRequest).field_violations]

    @property
    def reason(self) -> str:
        return self.detail(error_details_pb2.ErrorInfo).reason


def detail(status: status_pb2.Status, kind: type[M]) -> M:
    """The detail of this type; an empty message if the status has none."""
    message = kind()
    for packed in status.details:
        if packed.Unpack(message):
            break
    return message


def refusal(call: Callable[[], object]) -> Refusal:
    """The error of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value) or status_pb2.Status()
    return Refusal(caught.value.code(), caught.value.details() or "", status)
