"""The google.rpc.Status of each exception, with its error details."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from rerank.errors import BUG_MESSAGE, InvalidRequest, RerankError, grpc_status_of, reason_of

#: ErrorInfo.domain of every status.
DOMAIN = "rerank.v1"
#: gRPC sends a status in HTTP headers, which clients limit to 8 KiB, and messages may quote long values.
_MAX_MESSAGE_CHARS = 300


def status_of(error: Exception) -> status_pb2.Status:
    """The status for the caller, with google.rpc details.

    Any exception other than a RerankError becomes INTERNAL, without its message, which belongs in the log only.
    """
    code, reason = grpc.StatusCode[grpc_status_of(type(error))], reason_of(type(error))
    if not isinstance(error, RerankError):
        return _status(code, BUG_MESSAGE, _info(reason, {}))
    details: list[Message] = [_info(reason, error.metadata)]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_shortened(error.description)
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return _status(code, _shortened(str(error)), *details)


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
