"""Exception → gRPC status: one table, applied by one interceptor."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from rerank.errors import (
    CheckpointError,
    CollectionError,
    ConfigError,
    DeadlineExceeded,
    IndexMismatch,
    InvalidRequest,
    NotConfigured,
    NotFound,
    Overloaded,
    RerankError,
    SelfTestFailed,
    ShuttingDown,
)

log = logging.getLogger(__name__)

DOMAIN = "rerank.v1"

#: Exception → (status, ErrorInfo.reason).
STATUS: dict[type[RerankError], tuple[grpc.StatusCode, str]] = {
    InvalidRequest: (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    NotFound: (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    NotConfigured: (grpc.StatusCode.FAILED_PRECONDITION, "NOT_CONFIGURED"),
    Overloaded: (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    DeadlineExceeded: (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    ShuttingDown: (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"),
    ConfigError: (grpc.StatusCode.FAILED_PRECONDITION, "CONFIG_ERROR"),
    CollectionError: (grpc.StatusCode.FAILED_PRECONDITION, "COLLECTION_ERROR"),
    IndexMismatch: (grpc.StatusCode.FAILED_PRECONDITION, "INDEX_MISMATCH"),
    CheckpointError: (grpc.StatusCode.FAILED_PRECONDITION, "CHECKPOINT_ERROR"),
    SelfTestFailed: (grpc.StatusCode.FAILED_PRECONDITION, "SELF_TEST_FAILED"),
}
#: gRPC sends a status in headers, of which clients take 8 KiB; what a message quotes may be long.
_MAX_MESSAGE_CHARS = 300
_BUG = (grpc.StatusCode.INTERNAL, "BUG")


def status_of(error: Exception) -> status_pb2.Status:
    """The status that a caller sees, with google.rpc details. What is not a RerankError stays in the log."""
    code, reason = STATUS.get(type(error), _BUG) if isinstance(error, RerankError) else _BUG
    if not isinstance(error, RerankError):
        return _status(code, "internal error; this is a bug of the service, its log has the details", _info(reason, {}))
    details: list[Message] = [_info(reason, error.metadata)]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_shortened(error.description)
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Overloaded):
        delay = Duration(nanos=0)
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return _status(code, _shortened(str(error)), *details)


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of unary calls, and requests that cannot be parsed, into their status."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            _guarded(handler.unary_unary),
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _guarded(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            if isinstance(request, DecodeError):
                raise InvalidRequest("request", f"the bytes are no message of this type: {request}") from request
            return await method(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if not isinstance(error, RerankError):
                log.exception("bug in %s", getattr(method, "__name__", method))
            status = rpc_status.to_status(status_of(error))
            await context.abort(status.code, status.details, status.trailing_metadata)

    return guarded


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """gRPC answers INTERNAL when a deserializer raises; handed on instead, the error gets its own status."""

    if deserialize is None:
        return None

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return error

    return parse


def _shortened(text: str) -> str:
    """The text, or its beginning and end, which says the way out."""
    if len(text) <= _MAX_MESSAGE_CHARS:
        return text
    half = _MAX_MESSAGE_CHARS // 2 - 2
    return f"{text[:half]} … {text[-half:]}"


def _info(reason: str, metadata: dict[str, str]) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(
        reason=reason, domain=DOMAIN, metadata={k: _shortened(v) for k, v in metadata.items()}
    )


def _status(code: grpc.StatusCode, message: str, *details: Message) -> status_pb2.Status:
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code.value[0], message=message, details=packed)
