"""Services for tests: one in this process behind a real socket, and what its refusals say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from rerank.config import PERankModel, ServiceConfig
from rerank.reranker import AsyncReranker
from rerank.service.server import RunningServer, running_server
from rerank.v1 import rerank_pb2 as pb
from tests.fakes import numbered_passages

T = TypeVar("T")
M = TypeVar("M", bound=Message)

TIMEOUT_S = 60


@dataclass(frozen=True)
class Served:
    """A server that runs on an event loop in another thread."""

    running: RunningServer
    loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> str:
        return self.running.address

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result(TIMEOUT_S)


@contextmanager
def serving(closed: AsyncReranker) -> Iterator[Served]:
    """Serves until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="service", daemon=True)
    thread.start()
    context = running_server(closed)
    try:
        running = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(TIMEOUT_S)
        served = Served(running, loop)
        try:
            yield served
        finally:
            served.wait(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def config_for(names: Iterable[str], **settings: Any) -> ServiceConfig:
    """Settings for models of these names, on a free port."""
    models = tuple(PERankModel(name=name, ranker="pe-rank") for name in names)
    return ServiceConfig(listen="127.0.0.1:0", models=models, **settings)


def numbered_candidates(numbers: Sequence[float]) -> list[pb.Candidate]:
    """Candidates d0, d1, … whose relevance is the number in their text."""
    return [pb.Candidate(doc_id=passage.doc_id, text=passage.text) for passage in numbered_passages(numbers)]


@dataclass(frozen=True)
class Refusal:
    """An error as a client sees it: the status and its google.rpc details."""

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
    """The status's detail of this kind; an empty one when it has none."""
    message = kind()
    for packed in status.details:
        if packed.Unpack(message):
            break
    return message


def refusal(call: Callable[[], object]) -> Refusal:
    """How a service refuses this call."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value) or status_pb2.Status()
    return Refusal(caught.value.code(), caught.value.details() or "", status)
