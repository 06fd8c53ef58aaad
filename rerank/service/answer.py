"""Answers a call: every port hands its calls to `answer`, which applies the limits and records the outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from rerank.errors import RerankError, grpc_status_of
from rerank.service.call import Call, CallRecord, OnEnd, Reply, request_id_of
from rerank.service.in_flight import CallsInFlight

log = logging.getLogger(__name__)

#: Makes the reply to a message; `RerankMethods` fills in request and ranking of the record on the way.
Respond: TypeAlias = Callable[[bytes | bytearray, CallRecord], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service.

    Attributes:
        name: its name in the log and in the metrics.
        respond: makes the reply to a message.
        calls: the calls in flight, among which its own count.
        on_end: observes each call of the method that has ended.
    """

    name: str
    respond: Respond
    calls: CallsInFlight
    on_end: OnEnd


async def answer(call: Call, method: Method) -> CallRecord:
    """Answers a call within the limits, and hands its record to `method.on_end`. Errors are in the record.

    Raises:
        CancelledError: the client has hung up.
    """
    start_s, record = time.perf_counter(), CallRecord(method.name, request_id_of(call), call.peer)
    try:
        record.caller = method.calls.enter(call)
        message = await method.calls.receive(call)
        method.calls.hold(call, len(message))
        record.deadline_s = call.deadline_s
        reply = await method.respond(message, record)
        method.calls.expect_read(call, len(reply.body))
        record.reply, record.error = reply, reply.error
        record.status = "OK" if reply.error is None else grpc_status_of(type(reply.error))
    except Exception as error:
        if not isinstance(error, RerankError):
            log.exception("bug in %s, request %s", method.name, record.request_id)
        record.error, record.status = error, grpc_status_of(type(error))
    finally:
        record.seconds = time.perf_counter() - start_s
        method.on_end(record)
        if record.error is not None:
            record.error.__traceback__ = None  # its frames hold the message, and one another until a collection
    return record
