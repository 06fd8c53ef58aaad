"""The gRPC status of each exception and its google.rpc details."""

import grpc
import pytest
from google.rpc import error_details_pb2

from rerank import errors
from rerank.errors import InvalidRequest, Overloaded, RankerFailure, RerankError
from rerank.protobuf.status import DOMAIN, status_of
from tests.serving import detail

ERRORS = [kind for kind in RerankError.__subclasses__() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ERRORS)
def test_status_carries_code_message_and_error_info(kind):
    further = {InvalidRequest: ["depth", "the message"], Overloaded: ["the message", 1.25]}
    error = kind(*further.get(kind, ["the message"]), {"limit": "3"})
    status = status_of(error)
    assert (status.code, status.message) == (grpc.StatusCode[kind.grpc_status].value[0], str(error))
    assert detail(status, error_details_pb2.ErrorInfo) == error_details_pb2.ErrorInfo(
        reason=kind.reason, domain=DOMAIN, metadata={"limit": "3"}
    )


@pytest.mark.parametrize("error", [RankerFailure("secret"), ValueError("secret"), KeyError("secret"), TimeoutError()])
def test_other_exceptions_are_internal_without_their_message(error):
    status = status_of(error)
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "this is a bug of the service" in status.message
    assert "secret" not in str(status)
    assert detail(status, error_details_pb2.ErrorInfo).reason == "BUG"
