"""RerankStream: requests and answers of one stream, each request a call of its own."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import cast

import grpc

from rerank.errors import InvalidRequest, RerankError
from rerank.ports.grpc.handlers import Context, GrpcCall, Handler, HangUp, abort
from rerank.ports.message_methods import MessageMethods, parser
from rerank.protobuf.status import status_of
from rerank.service.answer import Method
from rerank.service.call import CallRecord, OnEnd
from rerank.service.in_flight import CallsInFlight
from rerank.service.streams import OpenStreams, RequestStream
from rerank.v1 import rerank_pb2 as pb

STREAM = "RerankStream"
_MAX_TIMEOUT_MS = 2**31


def request_stream_handler(methods: MessageMethods, calls: CallsInFlight, on_end: OnEnd, hang_up: HangUp) -> Handler:
    """The handler of RerankStream.

    Args:
        methods: answers its requests.
        calls, on_end: see `rerank.service.answer.Method`.
        hang_up: ends the connection of a client.
    """
    parse = parser(pb.RerankStreamRequest, calls)

    async def respond(message: bytes | bytearray, record: CallRecord) -> bytes:
        asked = parse(bytes(message))
        record.deadline_s = min(record.deadline_s, _deadline(asked.timeout_ms))
        response = await methods.rerank(asked.request, record)
        return pb.RerankStreamResponse(response=response).SerializeToString()

    method, streams = Method(STREAM, respond, calls, on_end), OpenStreams(calls)

    async def handle(_: object, context: Context) -> None:
        call = GrpcCall(context, hang_up)

        async def read() -> bytes | None:
            message = await context.read()
            return None if message is grpc.aio.EOF else cast(bytes, message)

        try:
            with streams.open(call) as opened:
                await RequestStream(call, method, partial(_write, context), opened).answer_all(read)
        except RerankError as error:
            await abort(context, error)
        except ExceptionGroup as errors:
            if errors.split(grpc.aio.InternalError)[1] is not None:
                raise
            raise asyncio.CancelledError from None  # the connection has ended, so that nobody can be answered

    return grpc.stream_stream_rpc_method_handler(handle)


async def _write(context: Context, number: int, record: CallRecord) -> None:
    """Sends an answer with its number. Two serialized messages in a row are one message with the fields of both."""
    numbered = pb.RerankStreamResponse(number=number, error=record.error and status_of(record.error))
    await context.write(record.reply + numbered.SerializeToString())


def _deadline(timeout_ms: float) -> float:
    """The deadline of a request on the event loop's clock, infinite for 0. Raises: InvalidRequest."""
    if not 0 <= timeout_ms <= _MAX_TIMEOUT_MS:  # also true for nan
        problem = f"{timeout_ms} is not between 0 and {_MAX_TIMEOUT_MS}; use 0 for the service's limit"
        raise InvalidRequest("timeout_ms", problem)
    return asyncio.get_running_loop().time() + timeout_ms / 1000 if timeout_ms else math.inf
