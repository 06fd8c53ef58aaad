"""Servers on real sockets that never come to the end of an answer, or send too long ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

#: Answers the requests of a connection, whose head and body it has read.
Answer: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


def again_and_again(piece: bytes, beginning: bytes = b"", pause_s: float = 0.0) -> Answer:
    """An answer without an end."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


def whole(body: bytes, *headers: str) -> Answer:
    """An answer with headers."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers, "", ""]
        writer.write("\r\n".join(head).encode() + body)
        await writer.drain()

    return answer


#: Answers that never end.
ENDLESS: Mapping[str, Answer] = {
    "100 Continue": again_and_again(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "body": again_and_again(b" " * 65536, b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n"),
}
#: Answers of too many bytes, and of too many values.
LONG: Mapping[str, Answer] = {"body": ENDLESS["body"], "values": whole(b"[" + b"[]," * 300_000 + b"1]")}
#: Answers that come one byte now and then.
SLOW: Mapping[str, Answer] = {
    "bytes of the status": again_and_again(b"0", b"HTTP/1.1 20", pause_s=0.05),
    "bytes of a header": again_and_again(b"x", b"HTTP/1.1 200 OK\r\nx: ", pause_s=0.05),
    "bytes of the body": again_and_again(b" ", b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n", pause_s=0.05),
    "100 Continue": again_and_again(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.05),
    "nothing": again_and_again(b"", pause_s=0.05),
}


@asynccontextmanager
async def hostile(answer: Answer, health: Answer | None = None, port: int = 0) -> AsyncIterator[str]:
    """The URL of a server that answers so, and GET /health in another way if there is one; port 0 is a free one."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                await (health if health and head.startswith(b"get /health ") else answer)(writer)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
