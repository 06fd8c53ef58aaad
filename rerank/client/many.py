"""Many requests of one caller: calls side by side, with their answers in the order of the requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, closing
from typing import TypeAlias

import grpc

from rerank.client.error_details import ServiceError
from rerank.errors import RerankError
from rerank.util.loop_thread import LoopThread
from rerank.util.many import ConcurrencyLimit, in_order
from rerank.v1 import rerank_pb2 as pb

#: Sends a request. Raises: ServiceError.
Send: TypeAlias = Callable[[pb.RerankRequest], Awaitable[pb.RerankResponse]]
#: Failures that do not depend on the request. A proxy before the service answers PERMISSION_DENIED.
_OF_ALL = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


def answers_in_order(
    connection: AbstractAsyncContextManager[Send], messages: Iterable[pb.RerankRequest]
) -> Iterator[pb.RerankResponse | ServiceError]:
    """The answers to requests, in their order; for a request that failed, the error.

    Args:
        connection: is open while requests are sent.
        messages: a bounded number of them is read ahead of the answers.

    Raises:
        ServiceError: nothing answers, or the error is one that all requests would get.
    """
    with closing(LoopThread("rerank-many")) as loop:
        limit, send = ConcurrencyLimit(_is_refusal), loop.wait(connection.__aenter__())

        async def answer(message: pb.RerankRequest) -> pb.RerankResponse | ServiceError:
            try:
                return await limit.run(lambda: send(message))
            except ServiceError as error:
                if error.code in _OF_ALL or (error.code is grpc.StatusCode.UNAVAILABLE and not error.reason):
                    raise
                return error

        def start(message: pb.RerankRequest) -> Future[pb.RerankResponse | ServiceError]:
            return loop.start(answer(message))

        try:
            yield from in_order(messages, start)
        finally:
            loop.wait(connection.__aexit__(None, None, None))


def _is_refusal(error: RerankError) -> bool:
    """True if the service had no room for a request and says when it may have."""
    return isinstance(error, ServiceError) and error.retry_after_s is not None
