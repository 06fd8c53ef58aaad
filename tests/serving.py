"""Services for tests, in this process but over a real socket, and the errors that their clients see."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import yaml
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from rerank.config import PERankModel, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.ports.server import RunningServer, running_server
from rerank.rankers.base import Ranker
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.reranker import AsyncReranker
from rerank.retrieval.index import Index
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceServicer, RerankServiceStub, add_RerankServiceServicer_to_server
from tests.fakes import NumberRanker, numbered_passages

T = TypeVar("T")
M = TypeVar("M", bound=Message)

TIMEOUT_S = 60


@dataclass(frozen=True)
class Served:
    """A server that runs on an event loop in another thread."""

    server: RunningServer
    loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> str:
        return self.server.address

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
        served = Served(server, loop)
        try:
            yield served
        finally:
            served.wait(context.__aexit__(None, None, None))
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


def reranker_of(
    encoder: Encoder, rankers: Mapping[str, Ranker], index: Index | None = None, **settings: Any
) -> AsyncReranker:
    """A reranker over these rankers by model name; the first is the default."""
    config = config_for(rankers, **settings)
    return AsyncReranker(config, encoder, index, ModelRegistry(config.models, rankers))


@contextmanager
def identity_service(encoder: Encoder, **settings: Any) -> Iterator[tuple[Served, grpc.Channel, RerankServiceStub]]:
    """A service whose only model, "identity", keeps the order; a channel to it, and its stub."""
    with (
        serving(reranker_of(encoder, {"identity": IdentityRanker()}, **settings)) as served,
        grpc.insecure_channel(served.address, options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        yield served, channel, RerankServiceStub(channel)


@dataclass(frozen=True)
class HeldService:
    """A service whose only model, "number", waits for `ranker.release`, and a channel to it."""

    served: Served
    reranker: AsyncReranker
    ranker: NumberRanker
    channel: grpc.Channel

    @property
    def stub(self) -> RerankServiceStub:
        return RerankServiceStub(self.channel)

    def start_call(self, **fields: Any) -> grpc.Future:
        """A call that has reached the model and waits there."""
        call = self.stub.Rerank.future(pb.RerankRequest(**{"query": "q"} | fields), timeout=TIMEOUT_S)
        assert self.ranker.entered.wait(TIMEOUT_S)
        return call


@contextmanager
def held_service(encoder: Encoder, free_batches: int = 0, **settings: Any) -> Iterator[HeldService]:
    """A HeldService; `free_batches` batches run without waiting."""
    ranker = NumberRanker(free_batches=free_batches)
    reranker = reranker_of(encoder, {"number": ranker}, **settings)
    unlimited = [("grpc.max_receive_message_length", -1)]
    with serving(reranker) as served, grpc.insecure_channel(served.address, options=unlimited) as channel:
        try:
            yield HeldService(served, reranker, ranker, channel)
        finally:
            ranker.release.set()


@contextmanager
def serving_servicer(servicer: RerankServiceServicer) -> Iterator[str]:
    """The address of a plain gRPC server of grpcio with this servicer."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_RerankServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def numbered_candidates(numbers: Sequence[float]) -> list[pb.Candidate]:
    """Candidates d0, d1, … whose relevance is the number in their text."""
    return [pb.Candidate(doc_id=passage.doc_id, text=passage.text) for passage in numbered_passages(numbers)]


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
