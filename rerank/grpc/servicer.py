"""gRPC servicer: checks each request, calls the reranker, converts the result and maps errors to statuses."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import reprlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NoReturn, TypeAlias
from weakref import WeakValueDictionary

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rerank.access.callers import current_caller
from rerank.config import Limits
from rerank.errors import InvalidRequest, Overloaded, RerankError, ShuttingDown
from rerank.reranker import AsyncReranker
from rerank.service import convert
from rerank.service.status import REQUEST_ID, status_of
from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc

log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
#: A grpc.RpcMethodHandler, whose stubs are those of synchronous servers.
Handler: TypeAlias = Any
#: Message from its bytes.
Parse: TypeAlias = Callable[[bytes], Any]
OnEnd: TypeAlias = "Callable[[FinishedCall], None]"

#: Messages that are received at the same time, in all and from one connection. Further calls wait, so that a message of
#: the largest size needs memory only when it is its turn, and slow clients leave room for those of other connections.
_RECEIVING, _RECEIVING_FROM_ONE = 16, 2
#: Seconds that calls have to send the rest of their messages when all places are taken.
_HURRY_S = 0.15
_VALID_REQUEST_ID = re.compile(r"[!-~]{1,128}")
#: Messages up to this size do not count as bytes in flight: `max_calls` bounds them.
_SMALL_MESSAGE = 64 * 1024


class RerankServicer(rerank_pb2_grpc.RerankServiceServicer):
    """Implements the three methods of RerankService. Its exceptions become statuses in GuardedServer."""

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker
        #: Runs the conversion of large requests, 50 ms for 16 MB, while other calls are served. On one thread, because
        #: several would keep the event loop from the interpreter for longer.
        self._submit = ThreadPoolExecutor(max_workers=1, thread_name_prefix="conversion").submit

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:  # noqa: N802
        if any(size > _SMALL_MESSAGE for size in accumulate(len(c.text) + len(c.title) for c in request.candidates)):
            call = await asyncio.wrap_future(self._submit(convert.rerank_call, request, self._reranker.config.limits))
        else:
            call = convert.rerank_call(request, self._reranker.config.limits)
        deadline, caller = self._deadline(context), _caller_name(context)
        ranking = await self._reranker.rerank(call.query, call.candidates, call.options, deadline, caller)
        return convert.rerank_response(ranking, call.return_passages, call.include_trace)

    async def Search(self, request: pb.SearchRequest, context: Context) -> pb.SearchResponse:  # noqa: N802
        call = convert.search_call(request, self._reranker.config.limits)
        result = await self._reranker.search(
            call.query,
            call.first_stage,
            call.depth,
            call.options,
            self._deadline(context),
            call.feedback,
            _caller_name(context),
        )
        return convert.search_response(result, call.return_passages, call.include_trace)

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        index = self._reranker.index
        return convert.list_models_response(self._reranker.models(), index.manifest if index else None)

    def _deadline(self, context: Context) -> float:
        """The earlier of the caller's deadline and the service's own limit, on the event loop's clock, in seconds."""
        remaining_s = context.time_remaining()
        allowed_s = min(self._reranker.config.limits.max_request_s, math.inf if remaining_s is None else remaining_s)
        return asyncio.get_running_loop().time() + allowed_s


def _caller_name(context: Context) -> str:
    """The name of the call's API key, or else the address of its connection."""
    caller = current_caller.get()
    return caller.name if caller else str(context.peer())


class CallsInFlight:
    """Bounds the calls in flight and their messages: how many, how many bytes, and how long they are under way.

    Attributes:
        on_unread_answer: called with the client's address when it does not read an answer.
        shutting_down: whether new calls are refused.
        limits: may be replaced while calls are in flight.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.shutting_down = False
        self._bytes: dict[Context, int] = {}
        self._timers: dict[Context, asyncio.TimerHandle] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._receiving = asyncio.Semaphore(_RECEIVING)
        self._timeouts: set[asyncio.Timeout] = set()
        self._until_drained: set[asyncio.Timeout] = set()
        self._receiving_from: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.on_unread_answer: Callable[[str], None] = lambda peer: None

    @property
    def number(self) -> int:
        """The number of calls in flight."""
        return len(self._bytes)

    def refuse_new_calls(self) -> None:
        """From now on every new call fails with UNAVAILABLE."""
        self.shutting_down = True

    @asynccontextmanager
    async def until_drained(self) -> AsyncIterator[None]:
        """Runs a block that ends with the drain, for calls that do not end with their connection.

        Raises:
            ShuttingDown: the drain has ended first.
        """
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._until_drained.add(timeout)
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            problem = "the service is shutting down and waits no longer; send the request to another replica"
            raise ShuttingDown(problem) from error
        finally:
            self._until_drained.discard(timeout)

    def end_drain(self) -> None:
        """Ends the blocks of `until_drained` that still run."""
        for timeout in self._until_drained:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    async def wait_until_idle(self) -> None:
        """Waits until no call is in flight."""
        await self._idle.wait()

    def enter(self, context: Context) -> None:
        """Counts the call as in flight until its answer was read. Raises: ShuttingDown, Overloaded."""
        if self.shutting_down:
            raise ShuttingDown("the service is shutting down; send the request to another replica")
        if len(self._bytes) >= self.limits.max_calls:
            raise _overloaded("max_calls", f"{len(self._bytes)} calls are in flight, the most that may be")
        self._bytes[context] = 0
        self._idle.clear()
        context.add_done_callback(self._leave)  # type: ignore[arg-type]  # the stubs want a class

    async def receive(self, context: Context, in_flight: bool = True) -> bytes:
        """The message of a call; its bytes count if the call is in flight. Raises: Overloaded, InvalidRequest."""
        timeout = asyncio.timeout(None)
        try:
            async with self._receiving_from.setdefault(context.peer(), asyncio.Semaphore(_RECEIVING_FROM_ONE)):
                if self._receiving.locked():
                    self._make_room()
                async with self._receiving, timeout:
                    allowed_s = _HURRY_S if self._receiving.locked() else self.limits.max_transfer_s
                    timeout.reschedule(asyncio.get_running_loop().time() + allowed_s)
                    self._timeouts.add(timeout)
                    message: Any = await context.read()
        except TimeoutError as error:
            raise _overloaded("max_transfer_s", "the request did not arrive in time; send it faster") from error
        finally:
            self._timeouts.discard(timeout)
        if message is grpc.aio.EOF:
            raise InvalidRequest("request", "the call ended without a message; send one")
        if in_flight:
            self._hold(context, len(message))
        await asyncio.sleep(0)  # copying 16 MB took some ms, and so does parsing: others are served in between
        return message

    def _make_room(self) -> None:
        """Gives the calls that are receiving only a short time more."""
        soon_s = asyncio.get_running_loop().time() + _HURRY_S
        for timeout in self._timeouts:
            if not timeout.expired():  # it may have passed a moment ago, and its call not have learned of it yet
                timeout.reschedule(min(timeout.when() or soon_s, soon_s))

    def expect_read(self, answer: bytes, context: Context) -> None:
        """Counts the bytes of the answer instead of the request's, until it is read in time. Raises: Overloaded."""
        self._hold(context, len(answer))
        later = asyncio.get_running_loop().call_later
        self._timers[context] = later(self.limits.max_transfer_s, self._end_unread, context.peer())

    def _hold(self, context: Context, size: int) -> None:
        others, limit = sum(self._bytes.values()) - self._bytes[context], self.limits.max_bytes_in_flight
        if others and others + size > limit and size > _SMALL_MESSAGE:
            raise _overloaded("max_bytes_in_flight", f"{others} bytes in flight + {size} exceed the limit of {limit}")
        self._bytes[context] = size

    def _leave(self, context: Context) -> None:
        del self._bytes[context]
        if timer := self._timers.pop(context, None):
            timer.cancel()
        if not self._bytes:
            self._idle.set()

    def _end_unread(self, peer: str) -> None:
        log.warning("%s did not read an answer within %g s: its connection ends", peer, self.limits.max_transfer_s)
        self.on_unread_answer(peer)


def _overloaded(limit: str, problem: str) -> Overloaded:
    """The error of a call that exceeds the limit of this name."""
    return Overloaded(f"{problem}; retry in 1 s", 1.0, {"exceeded": limit})


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A unary call that has ended; as a text, its line in the log, which never has a text of the request.

    Attributes:
        status: name of the gRPC status; a call that was cancelled, or whose deadline passed first, is CANCELLED.
        request: None if the call ended before its message was read.
        response: None unless the call was answered.
        error: what ended the call, if an exception did.
    """

    method: str
    status: str
    seconds: float
    request_id: str
    request: Any
    response: Any
    error: Exception | None

    @property
    def key(self) -> str:
        """The name of the caller's API key; empty without one. To be read in the task of the call."""
        caller = current_caller.get()
        return caller.name if caller else ""

    def __str__(self) -> str:
        execution = getattr(self.response, "execution", None)
        fields = {
            "key": self.key,
            "model": execution.model if execution else reprlib.repr(getattr(self.request, "model", "")),
            "candidates": len(getattr(self.request, "candidates", ())) or getattr(self.response, "first_stage_hits", 0),
            "windows": execution.windows if execution else 0,
        }
        text = "".join(f" {name}={value}" for name, value in fields.items() if value not in ("", "''"))
        return f"{self.method} {self.status} {self.seconds * 1000:.0f} ms id={self.request_id}{text}"


class GuardedServer:
    """Registers services whose calls have limits; turns their exceptions into statuses.

    A unary call is handled as a stream of one message, so that it can be refused before its message is received.

    Args:
        calls: the limits of the services' unary calls.
        on_end: called when a unary call has ended.
    """

    def __init__(self, server: grpc.aio.Server, calls: CallsInFlight, on_end: OnEnd) -> None:
        self._server, self._calls, self._on_end = server, calls, on_end

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Does nothing: services register the same handlers a second time, by method."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Registers the handlers of a service by the names of its methods."""
        methods = descriptor_pool.Default().FindServiceByName(service).methods_by_name
        guarded = {name: self._guarded(handler, methods[name].input_type) for name, handler in handlers.items()}
        self._server.add_registered_method_handlers(service, guarded)

    def _guarded(self, handler: Handler, kind: Descriptor) -> Handler:
        parse = partial(_parsed, handler.request_deserializer, kind, self._calls)
        if handler.unary_unary is not None:
            return _with_status(handler, parse, self._calls, self._on_end)
        if handler.stream_stream is not None:
            return _stream_with_status(handler, parse)
        return _watch_with_status(handler, parse, self._calls)


def _with_status(handler: Handler, parse: Parse, calls: CallsInFlight, on_end: OnEnd) -> Handler:
    name = handler.unary_unary.__name__

    async def call(_: object, context: Context) -> bytes:  # an iterator over the messages would keep the last one
        start_s, outcome, request_id = time.perf_counter(), "CANCELLED", request_id_of(context)
        request = response = answer = failure = None
        try:
            calls.enter(context)
            request = parse(await calls.receive(context))
            response = await handler.unary_unary(request, context)
            answer = handler.response_serializer(response)
            calls.expect_read(answer, context)
            context.set_trailing_metadata([(REQUEST_ID, request_id)])
            outcome = "OK"
            return answer
        except Exception as error:
            if not isinstance(error, RerankError):
                log.exception("bug in %s, request %s", name, request_id)
            failure, status = error, rpc_status.to_status(status_of(error))
            outcome = status.code.name
        finally:
            on_end(FinishedCall(name, outcome, time.perf_counter() - start_s, request_id, request, response, failure))
            request = response = answer = failure = None  # the exception of `abort` lives on and holds this frame
        return await context.abort(status.code, status.details, (*status.trailing_metadata, (REQUEST_ID, request_id)))

    return grpc.stream_unary_rpc_method_handler(call)


def request_id_of(context: Context) -> str:
    """The caller's id of the request, or a new one if the caller sent none that fits into a line of a log."""
    given = str(dict(context.invocation_metadata() or ()).get(REQUEST_ID, ""))
    return given if _VALID_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _watch_with_status(handler: Handler, parse: Parse, calls: CallsInFlight) -> Handler:
    async def call(_: object, context: Context) -> None:
        try:
            await handler.unary_stream(parse(await calls.receive(context, in_flight=False)), context)
        except RerankError as error:
            await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(call, response_serializer=handler.response_serializer)


async def _abort(context: Context, error: RerankError) -> NoReturn:
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("this is a bug: abort raises")


def _stream_with_status(handler: Handler, parse: Parse) -> Handler:
    async def call(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async def requests() -> AsyncIterator[Any]:
            async for message in messages:
                yield parse(message)

        try:
            async for response in handler.stream_stream(requests(), context):
                yield response
        except InvalidRequest as error:
            await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(call, response_serializer=handler.response_serializer)


def _parsed(deserialize: Parse, kind: Descriptor, calls: CallsInFlight, message: bytes) -> Any:
    if len(message) > calls.limits.max_candidates:  # a field has at least a byte, and a candidate may have several
        convert.check_field_count(message, kind, calls.limits)
    try:
        return deserialize(message)
    except DecodeError as error:
        raise InvalidRequest("request", f"the bytes are no message of this type: {error}") from error
