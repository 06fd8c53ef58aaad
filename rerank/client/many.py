"""Many requests of one caller: calls side by side, with their answers in the order of the requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING

import grpc

from rerank.client.error_details import ServiceError
from rerank.errors import RerankError
from rerank.util.loop_thread import LoopThread
from rerank.util.many import ConcurrencyLimit, in_order
from rerank.v1 import rerank_pb2 as pb

if TYPE_CHECKING:
    from rerank.client.client import AsyncRerankClient


def answers_in_order(
    open_client: Callable[[], Awaitable[AsyncRerankClient]], messages: Iterable[pb.RerankRequest], timeout_s: float
) -> Iterator[pb.RerankResponse | ServiceError]:
    """The answers to requests, in their order; for a request that failed, the error.

    Args:
        open_client: makes the client whose calls they are.
        messages: a bounded number of them is read ahead of the answers.
        timeout_s: deadline of each call in seconds.

    Raises:
        ServiceError: nothing answers at the target.
    """
    limit = ConcurrencyLimit(_is_refusal)
    with closing(LoopThread("rerank-many")) as loop:
        client = loop.wait(_entered(open_client))

        async def answer(message: pb.RerankRequest) -> pb.RerankResponse | ServiceError:
            try:
                return await limit.run(lambda: client.rerank_message(message, timeout_s))
            except ServiceError as error:
                if error.code is grpc.StatusCode.UNAVAILABLE and not error.reason:
                    raise
                return error

        def start(message: pb.RerankRequest) -> Future[pb.RerankResponse | ServiceError]:
            return loop.start(answer(message))

        try:
            yield from in_order(messages, start)
        finally:
            loop.wait(client.__aexit__())


async def _entered(open_client: Callable[[], Awaitable[AsyncRerankClient]]) -> AsyncRerankClient:
    return await open_client()


def _is_refusal(error: RerankError) -> bool:
    """True if the service had no room for a request and says when it may have."""
    return isinstance(error, ServiceError) and error.retry_after_s is not None
