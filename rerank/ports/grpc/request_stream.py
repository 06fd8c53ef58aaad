"""RerankStream over gRPC: many Rerank requests in one call, each answered when it is done."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import grpc

from rerank.errors import InvalidRequest, RerankError
from rerank.ports.grpc.handlers import Context, GrpcCall, Handler, abort
from rerank.service.calls import CallRecord, Method, parser
from rerank.service.status import status_of
from rerank.service.streams import OpenStreams, RequestStream
from rerank.v1 import rerank_pb2 as pb

STREAM = "RerankStream"
_MAX_TIMEOUT_MS = 2**31


def request_stream_handler(rerank: Method) -> Handler:
    """The handler of RerankStream. `rerank` is the method that answers one of its requests."""
    method, streams = _streamed(rerank), OpenStreams(rerank.calls)

    async def handle(_: object, context: Context) -> None:
        call = GrpcCall(context)

        async def read() -> bytes | None:
            message = await context.read()
            return None if message is grpc.aio.EOF else cast(bytes, message)

        async def write(number: int, record: CallRecord) -> None:
            error = record.error and status_of(record.error)
            await context.write(pb.RerankStreamResponse(number=number, response=record.response, error=error))

        try:
            with streams.open(call) as opened:
                await RequestStream(call, method, write, opened).answer_all(read)
        except RerankError as error:
            await abort(context, error)
        except ExceptionGroup as errors:
            if errors.split(grpc.aio.InternalError)[1] is not None:
                raise
            raise asyncio.CancelledError from None  # the connection has ended, so that nobody can be answered

    return grpc.stream_stream_rpc_method_handler(handle, response_serializer=lambda reply: reply.SerializeToString())


def _streamed(rerank: Method) -> Method:
    """Rerank for the messages of a stream, which have a request and its timeout."""
    parse = parser(pb.DESCRIPTOR.message_types_by_name["RerankStreamRequest"], rerank.calls)

    async def respond(message: bytes | bytearray, record: CallRecord) -> bytes:
        asked: pb.RerankStreamRequest = parse(bytes(message))
        if not 0 <= asked.timeout_ms <= _MAX_TIMEOUT_MS:  # also true for nan
            problem = f"{asked.timeout_ms} is not between 0 and {_MAX_TIMEOUT_MS}; use 0 for the service's limit"
            raise InvalidRequest("timeout_ms", problem)
        if asked.timeout_ms:
            now_s = asyncio.get_running_loop().time()
            record.deadline = min(record.deadline, now_s + asked.timeout_ms / 1000)
        return await rerank.respond(asked.request.SerializeToString(), record)

    return replace(rerank, name=STREAM, respond=respond)
