"""The gRPC status of each exception, with google.rpc error details."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from rerank.errors import (
    CheckpointError,
    CollectionError,
    ConfigError,
    DeadlineExceeded,
    IndexMismatch,
    InvalidRequest,
    ModelServerUnavailable,
    ModelServerUnfit,
    NotConfigured,
    NotFound,
    Overloaded,
    PermissionDenied,
    RerankError,
    SelfTestFailed,
    ShuttingDown,
    Unauthenticated,
    UsageError,
)

#: Metadata of a call that names it in logs: taken from the caller or made, and returned in the trailing metadata.
REQUEST_ID = "x-request-id"
#: ErrorInfo.domain of every status.
DOMAIN = "rerank.v1"

#: Exception → (status code, ErrorInfo.reason).
STATUS: dict[type[RerankError], tuple[grpc.StatusCode, str]] = {
    InvalidRequest: (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    Unauthenticated: (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    PermissionDenied: (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
    NotFound: (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    NotConfigured: (grpc.StatusCode.FAILED_PRECONDITION, "NOT_CONFIGURED"),
    Overloaded: (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    DeadlineExceeded: (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    ShuttingDown: (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"),
    ConfigError: (grpc.StatusCode.FAILED_PRECONDITION, "CONFIG_ERROR"),
    UsageError: (grpc.StatusCode.FAILED_PRECONDITION, "USAGE_ERROR"),
    CollectionError: (grpc.StatusCode.FAILED_PRECONDITION, "COLLECTION_ERROR"),
    IndexMismatch: (grpc.StatusCode.FAILED_PRECONDITION, "INDEX_MISMATCH"),
    CheckpointError: (grpc.StatusCode.FAILED_PRECONDITION, "CHECKPOINT_ERROR"),
    SelfTestFailed: (grpc.StatusCode.FAILED_PRECONDITION, "SELF_TEST_FAILED"),
    ModelServerUnavailable: (grpc.StatusCode.UNAVAILABLE, "MODEL_SERVER_UNAVAILABLE"),
    ModelServerUnfit: (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_SERVER_UNFIT"),
}
#: gRPC sends a status in HTTP headers, which clients limit to 8 KiB, and messages may quote long values.
_MAX_MESSAGE_CHARS = 300
_BUG = (grpc.StatusCode.INTERNAL, "BUG")


def status_of(error: Exception) -> status_pb2.Status:
    """The status for the caller, with google.rpc details.

    Any exception other than a RerankError becomes INTERNAL, without its message, which belongs in the log only.
    """
    code, reason = _code_and_reason(type(error))
    if not isinstance(error, RerankError):
        return _status(code, "internal error; this is a bug of the service, see its log for details", _info(reason, {}))
    details: list[Message] = [_info(reason, error.metadata)]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_shortened(error.description)
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return _status(code, _shortened(str(error)), *details)


def status_name(error: Exception) -> str:
    """The name of an exception's status code."""
    return _code_and_reason(type(error))[0].name


def reason_of(kind: type[Exception]) -> str:
    """ErrorInfo.reason of a class of exceptions."""
    return _code_and_reason(kind)[1]


def _code_and_reason(kind: type[Exception]) -> tuple[grpc.StatusCode, str]:
    return next((STATUS[each] for each in kind.__mro__ if each in STATUS), _BUG)


def _shortened(text: str) -> str:
    """The text, or its beginning and its end, because messages end with the way out."""
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
