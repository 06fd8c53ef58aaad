"""ServiceError, which a client raises for a failed call, and the google.rpc details of its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from rerank.errors import DeadlineExceeded, RerankError
from rerank.util.proxies import host_of, proxy_note

M = TypeVar("M", bound=Message)

#: Part of gRPC's message, in lower case, if something answers by another protocol → the likely reason.
_OTHER_PROTOCOLS = {
    "handshake failed": "TLS cannot be agreed on; does the service have TLS, and is its certificate signed by tls_ca?",
    "failed parsing http/2": "what answers there does not speak gRPC; is it the HTTP port?",
}
#: Part of gRPC's message, in lower case, if nothing answers → the likely reason.
_NO_ANSWER = {
    "socket closed": "what answers there ends the connection; if the service has TLS, give tls_ca (--tls-ca FILE), and "
    "a client certificate if it asks for one",
    "": "is `rerank serve` running there?",
}
#: `ServiceError.reason` if nothing answers.
NO_ANSWER = "NO_ANSWER"
#: `ServiceError.reason` of statuses that gRPC makes at the client.
_REASONS = {grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded.reason, grpc.StatusCode.UNAVAILABLE: NO_ANSWER}
#: Environment variables that name gRPC's proxy, in the order of precedence.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def explanation(error: grpc.RpcError) -> str:
    """The likely reason why gRPC got no answer, with gRPC's message."""
    details = str(error.details() or error.code())
    words = next(words for part, words in (_OTHER_PROTOCOLS | _NO_ANSWER).items() if part in details.lower())
    return f"{words} ({details})"


class ServiceError(RerankError):
    """A call failed; the message is the service's.

    Attributes:
        code: the gRPC status code.
        reason: `reason` of the google.rpc.ErrorInfo, such as "OVERLOADED". Without an ErrorInfo "DEADLINE_EXCEEDED" or
            "NO_ANSWER", and empty for other statuses, such as those of a proxy.
        metadata: `metadata` of the google.rpc.ErrorInfo: the numbers and names of the message.
        retry_after_s: seconds until the service expects to have capacity again; None if it does not say.
    """

    def __init__(self, error: grpc.RpcError, target: str) -> None:
        info = error_info(error)
        message = error.details() or str(error.code())
        if not info.reason and error.code() is grpc.StatusCode.UNAVAILABLE:  # gRPC itself got no answer
            message = f"no answer from {target}: {explanation(error)}{proxy_note(host_of(target), _PROXIES)}"
        if not info.reason and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"no answer from {target} before the deadline; allow more time (timeout_s), or ask for less"
        super().__init__(message, dict(info.metadata))
        self.code: grpc.StatusCode = error.code()
        self.grpc_status = self.code.name
        self.reason: str = info.reason or _REASONS.get(error.code(), "")
        self.retry_after_s = retry_delay_s(error)


def error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of the status; empty if it has none."""
    return _detail(error, error_details_pb2.ErrorInfo) or error_details_pb2.ErrorInfo()


def is_other_protocol(error: grpc.RpcError) -> bool:
    """True if something answers by another protocol, so that sending the call again is useless."""
    details = (error.details() or "").lower()
    return error.code() is grpc.StatusCode.UNAVAILABLE and any(part in details for part in _OTHER_PROTOCOLS)


def retry_delay_s(error: grpc.RpcError) -> float | None:
    """The delay of the status' RetryInfo in seconds; None if it has none."""
    info = _detail(error, error_details_pb2.RetryInfo)
    return None if info is None else info.retry_delay.seconds + info.retry_delay.nanos / 1e9


def _detail(error: grpc.RpcError, kind: type[M]) -> M | None:
    try:
        status = rpc_status.from_call(error)
    except (ValueError, DecodeError):  # gRPC or a proxy replaced the status but kept the old details
        return None
    details: Sequence[Any] = status.details if status is not None else ()
    for detail in details:
        found = kind()
        if detail.Unpack(found):
            return found
    return None
