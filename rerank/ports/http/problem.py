"""Errors of HTTP requests: the HTTP status of each exception, and the message for the client."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.rpc import status_pb2

from rerank.errors import InvalidRequest, RerankError, ShuttingDown, Unauthenticated
from rerank.protobuf.status import status_of

#: gRPC status code → HTTP status, as google/rpc/code.proto maps them.
HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
#: Number of a gRPC status code → HTTP status.
_STATUS_OF_CODE = {code.value[0]: status for code, status in HTTP_STATUS.items()}


class RefusedByHttp(InvalidRequest):
    """The request breaks a rule that gRPC does not have, for example by its path or its content type.

    Attributes:
        status: the HTTP status of the answer.
        headers: headers of the answer.
    """

    def __init__(self, status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__("request", message)
        self.status = status
        self.headers = headers or {}

    def __str__(self) -> str:
        return self.description


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a client sees it.

    Attributes:
        status: the HTTP status.
        message: what was given, what is allowed, and what to do.
        rpc_status: the google.rpc.Status that a gRPC client would get.
        headers: headers of the answer, such as Retry-After.
    """

    status: HTTPStatus
    message: str
    rpc_status: status_pb2.Status
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def as_json(self) -> dict[str, Any]:
        """The google.rpc.Status in protobuf's JSON mapping."""
        return MessageToDict(self.rpc_status, preserving_proto_field_name=True)


def problem_of(error: Exception, passages_field: str = "candidates") -> Problem:
    """Converts an exception to the error that a client sees.

    Args:
        error: the exception. Any other than a RerankError is a bug, whose message is for the log only.
        passages_field: the name that the client's API has for the field `candidates`.
    """
    if isinstance(error, RefusedByHttp):
        code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
        return Problem(error.status, str(error), status_pb2.Status(code=code, message=str(error)), error.headers)
    if isinstance(error, InvalidRequest) and passages_field != "candidates":
        name = error.field.replace("candidates", passages_field).removesuffix(".text")
        error = InvalidRequest(name, error.description, error.metadata)
    status = status_of(error)
    http_status = _STATUS_OF_CODE.get(status.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return Problem(http_status, status.message, status, _headers(error))


def _headers(error: Exception) -> dict[str, str]:
    """Returns Retry-After, in whole seconds; for a request without a valid key WWW-Authenticate, the scheme of keys."""
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, RerankError) and error.retry_after_s is not None:
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    return {"retry-after": "1"} if isinstance(error, ShuttingDown) else {}
