"""A stand-in for an inference server: replies that were recorded from a real one, over HTTP, and faults on demand."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The replies of vLLM 0.32 with SmolLM2-135M in float32 and the bundled FIRST as the LoRA adapter `first`; and of
#: llama-server, build 11549, with SmolLM2-135M in Q4_1.
VLLM = Path(__file__).parent / "vllm_0_32.jsonl"
LLAMA_CPP = Path(__file__).parent / "llama_cpp_11549.jsonl"


@dataclass(frozen=True)
class Reply:
    """A reply of a server, or a fault.

    Attributes:
        cut: the connection breaks after this number of bytes of the body; None: it does not.
        delay_s: seconds before the reply.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    delay_s: float = 0.0


def recorded(path: Path) -> dict[str, Reply]:
    """Request → the recorded reply."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {key_of(row["method"], row["path"], row["request"]): Reply(row["status"], row["reply"]) for row in rows}


def key_of(method: str, path: str, body: Any) -> str:
    return f"{method} {path} {json.dumps(body, sort_keys=True)}"


class StandIn:
    """Answers requests as they are recorded. A test fails if it sends one that is not.

    Attributes:
        replies: request → reply, see `recorded`.
        fault: called with path and body before every request; a reply that it returns replaces the recorded one.
        requests: the paths and bodies of all requests, in order.
        running: the number of POST requests that wait for their reply.
        most_running: the largest number at a time.
        headers: of the latest request.
    """

    def __init__(self, replies: dict[str, Reply]) -> None:
        self.replies = replies
        self.fault: Callable[[str, Any], Reply | None] = lambda path, body: None
        self.requests: list[tuple[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.running = self.most_running = 0
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens; after `kill`, on the same port again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Breaks all connections and stops to listen, as a killed process."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._answer_one(reader, writer):
                pass
        self._connections.discard(writer)
        writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers a request; False if the connection ends."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        method, path, _ = head[0].split()
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = json.loads(await reader.readexactly(int(self.headers.get("content-length", 0))) or "null")
        self.requests.append((path, body))
        reply = await asyncio.to_thread(self.fault, path, body) or self.replies.get(key_of(method, path, body))
        reply = reply or Reply(599, {"error": "this request is not recorded"})
        if not await self._wait(reply, method, reader):
            return False
        content = json.dumps(reply.body).encode() if not isinstance(reply.body, bytes) else reply.body
        lines = [f"HTTP/1.1 {reply.status} X", f"content-length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content[: reply.cut])
        await writer.drain()
        return reply.cut is None

    async def _wait(self, reply: Reply, method: str, reader: asyncio.StreamReader) -> bool:
        """Waits for the reply's delay; False if the client hangs up before."""
        self.running += method == "POST"
        self.most_running = max(self.most_running, self.running)
        try:
            if reply.delay_s:
                with suppress(TimeoutError):
                    return await asyncio.wait_for(reader.read(1), reply.delay_s) != b""
            return True
        finally:
            self.running -= method == "POST"


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Waits until the condition holds; a test fails if it takes longer."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # nothing that could set an event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def stand_in(replies: dict[str, Reply]) -> AsyncIterator[StandIn]:
    """A stand-in that listens until the block ends."""
    server = StandIn(replies)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
