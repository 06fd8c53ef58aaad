"""The google.rpc details of a call that failed, as the client sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

M = TypeVar("M", bound=Message)


def error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of the status; empty if it has none."""
    return _detail(error, error_details_pb2.ErrorInfo) or error_details_pb2.ErrorInfo()


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
