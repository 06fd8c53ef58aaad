"""The gRPC status code of each exception, and the reason that clients read."""

from __future__ import annotations

import grpc

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
_BUG = (grpc.StatusCode.INTERNAL, "BUG")


def code_and_reason(kind: type[Exception]) -> tuple[grpc.StatusCode, str]:
    """Status code and ErrorInfo.reason of a class of exceptions; INTERNAL and BUG for all but a RerankError."""
    return next((STATUS[each] for each in kind.__mro__ if each in STATUS), _BUG)


def status_name(error: Exception) -> str:
    """The name of an exception's status code."""
    return code_and_reason(type(error))[0].name


def reason_of(kind: type[Exception]) -> str:
    """ErrorInfo.reason of a class of exceptions."""
    return code_and_reason(kind)[1]
