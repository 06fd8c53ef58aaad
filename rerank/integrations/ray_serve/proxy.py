"""The services of rerank in Ray Serve's gRPC proxy, which forwards every call to a replica.

Ray's own handlers do not pass the deadline of a call to replicas, and fail with INTERNAL if the replica dies. The
handlers here add the deadline to the metadata, leave messages as bytes, and give calls that Ray ends a status of
`rerank.errors`. Ray has no public interface for other handlers in its proxy, so this module uses its internal
`service_handler_factory`, `add_passthrough_service` and `gRPCStreamingType`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_status import rpc_status

from rerank.errors import Overloaded, RerankError, ShuttingDown
from rerank.protobuf.status import status_of
from rerank.service.call import REQUEST_ID
from rerank.v1 import rerank_pb2_grpc

#: Metadata that the proxy adds to a call: seconds until the caller's deadline. A caller's own value is dropped.
TIME_REMAINING = "x-rerank-time-remaining-s"
#: Statuses that the proxy leaves as they are: the caller has the answer, or does not wait for it.
_ENDED = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
#: Time in seconds until a caller may send a refused request again.
_RETRY_AFTER_S = 1.0


def add_services(servicer: Any, server: Any) -> None:
    """Adds RerankService and the health checks to the proxy; Ray Serve calls it by `grpc_servicer_functions`.

    Args:
        servicer: a placeholder of Ray Serve.
        server: the gRPC server of the proxy.
    """
    forwarding = _ForwardingServer(server)
    rerank_pb2_grpc.add_RerankServiceServicer_to_server(servicer, forwarding)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, forwarding)


class _ForwardingServer:
    """Registers services whose unary methods the proxy forwards; streaming methods, such as Health.Watch, are left out.

    gRPC's generated `add_…Servicer_to_server` functions call it in the place of a server.
    """

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Does nothing, because `add_registered_method_handlers` registers generic handlers, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Registers handlers that forward; reflection reads the names of services from generic handlers."""
        forwarding = {
            name: self._forward(f"/{service}/{name}") for name, handler in handlers.items() if handler.unary_unary
        }
        self._server.add_passthrough_service(service)  # otherwise Ray would replace the handlers
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, forwarding),))
        self._server.add_registered_method_handlers(service, forwarding)

    def _forward(self, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        from ray.serve._private.proxy_request_response import gRPCStreamingType  # after the check of Ray's version

        forward = self._server.service_handler_factory(
            service_method=method, streaming_type=gRPCStreamingType.UNARY_UNARY
        )

        async def call(message: bytes, context: Any) -> bytes:
            answer: bytes = await forward(message, _ContextWithDeadline(context))
            if context.code() not in (None, 0, *_ENDED) and REQUEST_ID not in dict(context.trailing_metadata()):
                set_status(context, _error_of_ray(context.code()))
            return answer

        return grpc.unary_unary_rpc_method_handler(call)


class _ContextWithDeadline:
    """A gRPC context with the time until its deadline in the metadata, because Ray passes only these to a replica."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        """The caller's metadata, and TIME_REMAINING if there is a deadline."""
        metadata = [(name, value) for name, value in self._context.invocation_metadata() if name != TIME_REMAINING]
        remaining_s = self._context.time_remaining()
        return metadata if remaining_s is None else [*metadata, (TIME_REMAINING, repr(remaining_s))]


def _error_of_ray(code: grpc.StatusCode) -> RerankError:
    """The error of a call that Ray ended with a status code, and not a replica."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        problem = "the replicas have as many calls in flight as they may, and as many more are waiting"
        return Overloaded(f"{problem}; retry in {_RETRY_AFTER_S:g} s", _RETRY_AFTER_S, {"exceeded": "max_calls"})
    return ShuttingDown("the replica of this call ended, or none runs; send the request again")


def set_status(context: Any, error: Exception, *trailing_metadata: tuple[str, str]) -> None:
    """Sets the status of a call from an error."""
    status = rpc_status.to_status(status_of(error))
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata([*status.trailing_metadata, *trailing_metadata])
