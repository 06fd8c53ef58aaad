"""gRPC servicer: checks each request, calls the reranker, converts the result and maps errors to statuses."""

from __future__ import annotations

import asyncio
import logging
import reprlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rerank.errors import InvalidRequest, RerankError, ShuttingDown
from rerank.reranker import AsyncReranker
from rerank.service import convert
from rerank.service.status import status_of
from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc

log = logging.getLogger(__name__)

#: Types of the requests that the log has a line of.
_LOGGED = (pb.RerankRequest, pb.SearchRequest, pb.ListModelsRequest, DecodeError)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class RerankServicer(rerank_pb2_grpc.RerankServiceServicer):
    """Implements the three methods of RerankService. Its exceptions become statuses in StatusInterceptor."""

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker
        self._limits = reranker.config.limits
        self._shutting_down = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def refuse_new_calls(self) -> None:
        """From now on every new call fails with UNAVAILABLE."""
        self._shutting_down = True

    async def wait_until_idle(self) -> None:
        """Waits until no call is in flight."""
        await self._idle.wait()

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:  # noqa: N802
        self._register(context)
        call = convert.rerank_call(request, self._limits)
        ranking = await self._reranker.rerank(call.query, call.candidates, call.options, self._deadline(context))
        return convert.rerank_response(ranking, call.return_passages)

    async def Search(self, request: pb.SearchRequest, context: Context) -> pb.SearchResponse:  # noqa: N802
        self._register(context)
        call = convert.search_call(request, self._limits)
        result = await self._reranker.search(
            call.query, call.first_stage, call.depth, call.options, self._deadline(context), call.feedback
        )
        return convert.search_response(result, call.return_passages)

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        self._register(context)
        index = self._reranker.index
        return convert.list_models_response(self._reranker.models(), index.manifest if index else None)

    def _deadline(self, context: Context) -> float:
        """The earlier of the caller's deadline and the service's own limit, on the event loop's clock, in seconds."""
        remaining_s = context.time_remaining()
        limit_s = self._limits.max_request_s
        allowed_s = limit_s if remaining_s is None else min(remaining_s, limit_s)
        return asyncio.get_running_loop().time() + allowed_s

    def _register(self, context: Context) -> None:
        """Counts the call as in flight until its response has been sent. Raises: ShuttingDown."""
        if self._shutting_down:
            raise ShuttingDown("the service is shutting down; send the request to another replica")
        self._in_flight += 1
        self._idle.clear()
        context.add_done_callback(lambda _: self._unregister())  # type: ignore[arg-type]  # the stubs want a class

    def _unregister(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of unary calls and requests that cannot be parsed into statuses; logs one line per call."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            _with_status(handler.unary_unary),
            request_deserializer=_decode_error_as_request(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _with_status(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        start_s = time.perf_counter()
        response, outcome = None, "CANCELLED"
        try:
            if isinstance(request, DecodeError):
                raise InvalidRequest("request", f"the bytes are no message of this type: {request}") from request
            response = await method(request, context)
            outcome = "OK"
            return response
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if not isinstance(error, RerankError):
                log.exception("bug in %s", getattr(method, "__name__", method))
            status = rpc_status.to_status(status_of(error))
            outcome = status.code.name
            await context.abort(status.code, status.details, status.trailing_metadata)
        finally:
            total_ms = (time.perf_counter() - start_s) * 1000
            level = logging.INFO if isinstance(request, _LOGGED) else logging.DEBUG  # health checks come often
            log.log(
                level, "%s %s %.0f ms%s", method.__name__, outcome, total_ms, _log_fields(request, response, context)
            )

    return call


def _log_fields(request: Any, response: Any, context: Context) -> str:
    """The request's id (metadata x-request-id), model and counts, for the log; never a text of the request."""
    request_id = dict(context.invocation_metadata() or ()).get("x-request-id")
    execution = getattr(response, "execution", None)
    fields = {
        "id": reprlib.repr(request_id) if request_id else "",
        "model": execution.model if execution else reprlib.repr(getattr(request, "model", "")),
        "candidates": len(getattr(request, "candidates", ())) or getattr(response, "first_stage_hits", 0),
        "windows": execution.windows if execution else 0,
    }
    return "".join(f" {name}={value}" for name, value in fields.items() if value not in ("", "''"))


def _decode_error_as_request(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """A deserializer that returns DecodeError, because gRPC answers INTERNAL when a deserializer raises."""

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data) if deserialize else data
        except DecodeError as error:
            return error

    return parse
