"""Asks a service for its health."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rerank.access.credentials import Credentials
from rerank.client.error_details import ServiceError
from rerank.client.retries import checked_timeout_s
from rerank.names import LIVENESS, SERVICE


def check_health(
    target: str, credentials: Credentials, timeout_s: float, model: str = "", liveness: bool = False
) -> str:
    """The status of a service, such as "SERVING" or "NOT_SERVING".

    Args:
        target: HOST:PORT of the service.
        credentials: TLS; health checks need no key.
        timeout_s: deadline of the call in seconds.
        model: asks for this model; empty: for the default model.
        liveness: asks only whether the process answers, even if its models are not served.

    Raises:
        ServiceError: there was no answer, or there is no such model.
    """
    name = LIVENESS if liveness else f"{SERVICE}/{model}" if model else ""
    with credentials.channel(target) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=name), timeout=checked_timeout_s(timeout_s)
            )
        except grpc.RpcError as error:
            raise ServiceError(error, target) from error
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
