"""Answers a call: every port hands its calls to `answer`, which applies the limits and records the outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from rerank.access.callers import STRANGER
from rerank.errors import DeadlineExceeded, RerankError
from rerank.service.call import Call, CallContext, CallRecord, OnEnd, ReadCall, Reply, request_id_of
from rerank.service.in_flight import CallsInFlight

log = logging.getLogger(__name__)

#: Reads a message. Raises: RerankError.
Read: TypeAlias = Callable[[bytes | bytearray], Awaitable[ReadCall]]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service.

    Attributes:
        name: its name in the log and in the metrics.
        read: reads a message.
        calls: the calls in flight, among which its own count.
        on_end: observes each call of the method that has ended.
    """

    name: str
    read: Read
    calls: CallsInFlight
    on_end: OnEnd


async def answer(call: Call, method: Method) -> tuple[str, Reply]:
    """Answers a call within the limits, and hands its record to `method.on_end`.

    Returns:
        The id of the request, and the reply, which has the error if there is one.

    Raises:
        CancelledError: the client has hung up.
    """
    start_s, request_id = time.perf_counter(), request_id_of(call)
    caller, request, reply = STRANGER, None, None
    try:
        caller = method.calls.enter(call)
        message = await method.calls.receive(call)
        method.calls.hold(call, len(message))
        if call.deadline_s <= asyncio.get_running_loop().time():  # a message takes up to some ms to parse
            raise DeadlineExceeded("the deadline passed while the request arrived; allow more time")
        read = await method.read(message)
        del message
        request = read.request
        reply = await read.run(CallContext(caller, call.peer, call.deadline_s))
        method.calls.expect_read(call, len(reply.body))
    except Exception as error:
        if not isinstance(error, RerankError):
            log.exception("bug in %s, request %s", method.name, request_id)
        reply = Reply(error=error)
    finally:
        seconds = time.perf_counter() - start_s
        method.on_end(CallRecord(method.name, request_id, call.peer, seconds, caller, request, reply))
        if reply is not None and reply.error is not None:
            reply.error.__traceback__ = None  # the traceback keeps the message alive until the collector runs
    return request_id, reply
