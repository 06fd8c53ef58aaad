"""Exceptions: one class for each kind of failure that a caller or an operator can act on, with its gRPC status.

A RerankError is caused by the caller's request or the operator's settings. Its message names the given value, the
allowed ones and the way out. Any other exception is a bug of this package, whose status is INTERNAL.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

#: Errors and the log quote at most this many characters of a name in a request.
MAX_QUOTED_CHARS = 500


#: The caller's message if the service has a bug. The exception's text may contain anything, so only the log gets it.
BUG_MESSAGE = "internal error; this is a bug of the service, see its log for details"
_BUG = ("INTERNAL", "BUG")


class RerankError(Exception):
    """Base class of all errors that a caller or an operator can act on.

    Attributes:
        grpc_status: name of the gRPC status code.
        reason: `reason` of the google.rpc.ErrorInfo, by which programs recognise the error.
        metadata: the numbers and names of the message, for programs.
        retry_after_s: seconds until the same request can succeed; None where that is not known.
    """

    grpc_status, reason = _BUG
    retry_after_s: float | None = None

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.metadata = dict(metadata or {})


class InvalidRequest(RerankError):
    """A field of the request is invalid.

    Attributes:
        field: the path of the field in the protobuf request, such as "strategy.window_size".
        description: the message without the field.
    """

    grpc_status, reason = "INVALID_ARGUMENT", "INVALID_REQUEST"

    def __init__(self, field: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{field}: {message}", metadata)
        self.field = field
        self.description = message


def is_rust_panic(error: BaseException) -> bool:
    """Returns True for a panic of a library's Rust code, which is a BaseException and not an Exception."""
    return type(error).__name__ == "PanicException"


def too_many(field: str, value: int | str, limit: int, unit: str, setting: str = "") -> InvalidRequest:
    """The error of a field whose value exceeds a limit, which a setting of the service may raise."""
    raised = f", or raise {setting} of the service" if setting else ""
    return InvalidRequest(
        field,
        f"{value} {unit} exceed the limit of {limit}; send at most {limit}{raised}",
        {"value": str(value), "limit": str(limit)},
    )


class Unauthenticated(RerankError):
    """The request has no API key, or one that the service does not know."""

    grpc_status, reason = "UNAUTHENTICATED", "UNAUTHENTICATED"


class NotFound(RerankError):
    """The request names a model or a passage that does not exist."""

    grpc_status, reason = "NOT_FOUND", "NOT_FOUND"


class NotConfigured(RerankError):
    """The request needs a part that the service does not have, such as an index."""

    grpc_status, reason = "FAILED_PRECONDITION", "NOT_CONFIGURED"


class Overloaded(RerankError):
    """A limit is reached, which `metadata["exceeded"]` names; the same request can succeed after `retry_after_s`."""

    grpc_status, reason = "RESOURCE_EXHAUSTED", "OVERLOADED"

    def __init__(self, message: str, retry_after_s: float, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message, metadata)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RerankError):
    """The deadline of the request has passed."""

    grpc_status, reason = "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"


class ShuttingDown(RerankError):
    """The service is shutting down and accepts no new requests."""

    grpc_status, reason = "UNAVAILABLE", "SHUTTING_DOWN"


class ConfigError(RerankError):
    """A setting is unusable: an unknown key, an invalid value, a contradiction or a missing dependency."""

    grpc_status, reason = "FAILED_PRECONDITION", "CONFIG_ERROR"


class UsageError(RerankError):
    """An object of this package is used when it cannot work: after `close`, or outside an event loop."""

    grpc_status, reason = "FAILED_PRECONDITION", "USAGE_ERROR"


class CollectionError(RerankError):
    """A collection cannot be read or indexed."""

    grpc_status, reason = "FAILED_PRECONDITION", "COLLECTION_ERROR"


class IndexMismatch(RerankError):
    """The folder holds no index, or an index that another encoder or another version made."""

    grpc_status, reason = "FAILED_PRECONDITION", "INDEX_MISMATCH"


class CheckpointError(RerankError):
    """The files of a model are incomplete, were modified, name code, or do not fit the encoder; it is not served."""

    grpc_status, reason = "FAILED_PRECONDITION", "CHECKPOINT_ERROR"


class SelfTestFailed(RerankError):
    """A model was loaded but failed its self-test; the service runs without it."""

    grpc_status, reason = "FAILED_PRECONDITION", "SELF_TEST_FAILED"


class ModelLoading(RerankError):
    """The model is being loaded; the same request can succeed later."""

    grpc_status, reason = "UNAVAILABLE", "MODEL_LOADING"
    retry_after_s = 5.0


class ModelServerUnavailable(RerankError):
    """No inference server that runs the model answers; the same request can succeed later."""

    grpc_status, reason = "UNAVAILABLE", "MODEL_SERVER_UNAVAILABLE"


class ModelServerUnfit(RerankError):
    """An inference server refuses the requests, or does not give the scores of the configured model."""

    grpc_status, reason = "FAILED_PRECONDITION", "MODEL_SERVER_UNFIT"


class RankerFailure(Exception):
    """A ranker raised or returned an invalid ranking: a bug. No caller can act on it, so it is not a RerankError."""


#: Failures to rank a valid request, after which it may get an answer all the same (see OnFailure). Class → what
#: happened, for a sentence that goes on with "after 3 of 9 windows". ShuttingDown is not one of them, because another
#: replica can rank the request.
FAILURES: Mapping[type[Exception], str] = {
    DeadlineExceeded: "the deadline came",
    Overloaded: "the queue had no room",
    CheckpointError: "a model is not served",
    SelfTestFailed: "a model is not served",
    ModelLoading: "a model was being loaded",
    ModelServerUnavailable: "no inference server answered",
    ModelServerUnfit: "no inference server gave scores",
    RankerFailure: "the model failed",
}


def message_for_caller(failure: Exception) -> str:
    """The message of a failure for the caller. A bug is logged, and the caller gets BUG_MESSAGE."""
    if isinstance(failure, RerankError):
        return str(failure)
    log.error("bug: a request was answered without its ranking, which failed", exc_info=failure)
    return BUG_MESSAGE


def grpc_status_of(kind: type[Exception]) -> str:
    """Name of the gRPC status code of a class of exceptions; INTERNAL for a bug."""
    return kind.grpc_status if issubclass(kind, RerankError) else _BUG[0]


def reason_of(kind: type[Exception]) -> str:
    """ErrorInfo.reason of a class of exceptions; BUG for a bug."""
    return kind.reason if issubclass(kind, RerankError) else _BUG[1]
