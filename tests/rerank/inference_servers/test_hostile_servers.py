"""Servers that never end an answer or make it costly to read: each wait has an end, and each length a bound."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import pytest

from rerank.config import ApiModel, RerankServerSettings, load_config
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single
from rerank.errors import DeadlineExceeded, ModelServerUnfit
from rerank.inference_servers import server
from rerank.inference_servers.api import Post
from rerank.inference_servers.server import NoAnswer, Server, WatchedServer, client_of
from rerank.ports.server import serve
from rerank.reranking.load_models import load_remote
from rerank.types import Passage
from tests.rerank.inference_servers.cases import QUERY
from tests.rerank.inference_servers.test_served_models import opened

ASK = Post("/ask", {})
#: Far below the duration of an attack, and far above what is allowed to it.
SOON_S = 5.0
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


OK = whole(b"{}")
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
#: Answers that never end.
ENDLESS: Mapping[str, Answer] = {
    "100 Continue": again_and_again(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "body": again_and_again(b" " * 65536, b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n"),
    "extensions of chunks": again_and_again(b"1;" + b"x" * 50_000 + b"\r\n \r\n", CHUNKED),
    "chunks of a byte": again_and_again(b"1\r\n \r\n" * 1000, CHUNKED),
}
#: Answers of too many bytes, also of those that a parser drops, and of too many values.
LONG: Mapping[str, Answer] = {**ENDLESS, "values": whole(b"[" + b"[]," * 300_000 + b"1]")}
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
        connections.add(asyncio.current_task())  # type: ignore[arg-type]
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


@asynccontextmanager
async def server_at(answer: Answer) -> AsyncIterator[Server]:
    async with hostile(answer) as url, client_of(url, "") as client:
        yield Server(url, client)


def api_at(url: str, kind: str = "jina") -> ApiModel:
    return ApiModel(name="zephyr", ranker="api", served_by=RerankServerSettings(kind=kind, url=url, model="x"))


@pytest.mark.parametrize("answer", LONG.values(), ids=LONG)
async def test_long_answer_is_refused_before_the_call_is_late(answer):
    async with server_at(answer) as server, asyncio.timeout(SOON_S):
        with pytest.raises(ModelServerUnfit, match=f"{server.url}/ask answered with .*; correct served_by"):
            await server.post(ASK)


async def test_server_that_switches_protocols_is_refused():
    switch = again_and_again(b"", b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", 1.0)
    async with server_at(switch) as server, asyncio.timeout(SOON_S):
        with pytest.raises((ModelServerUnfit, NoAnswer)):
            await server.post(ASK)


@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
async def test_time_of_a_call_counts_the_whole_answer(answer, monkeypatch):
    monkeypatch.setattr(server, "_ANSWER_S", 0.3)
    async with server_at(answer) as asked, asyncio.timeout(SOON_S):
        with pytest.raises(NoAnswer, match=r"/ask: no answer within 0.3 s"):
            await asked.post(ASK)


@pytest.mark.parametrize("answer", [ENDLESS["100 Continue"], SLOW["bytes of a header"]], ids=["100", "slow"])
async def test_health_check_without_an_end_leaves_a_model_out_soon(answer, monkeypatch):
    monkeypatch.setattr(server, "_HEALTH_S", 0.3)
    async with hostile(answer) as url:
        ranker = load_remote(api_at(url, "infinity"))
        async with asyncio.timeout(SOON_S):
            await ranker.open()
            assert url in ranker.problem
            await ranker.close()


async def test_check_without_an_end_delays_the_start_by_a_bounded_time_and_ends_with_it(monkeypatch):
    monkeypatch.setattr(server, "_OPEN_S", 0.3)
    async with hostile(SLOW["nothing"], health=OK) as url:
        ranker = load_remote(api_at(url, "infinity"))
        before = asyncio.all_tasks()
        async with asyncio.timeout(SOON_S):
            await ranker.open()
            assert "has not answered yet" in ranker.problem
            await ranker.close()
        assert not [task for task in asyncio.all_tasks() - before if "serve" not in repr(task)]


async def test_call_during_the_first_check_waits_for_its_end(monkeypatch):
    monkeypatch.setattr(server, "_OPEN_S", 0.1)

    async def check() -> None:
        await asyncio.sleep(0.5)

    async with hostile(OK) as url, client_of(url, "") as client:
        there = Server(url, client)
        watch = WatchedServer("zephyr", there, check)
        await watch.open()
        assert watch.problem
        assert await watch.call(lambda: there.post(ASK)) == {}
        await watch.close()


@pytest.mark.parametrize("name", ENDLESS)
async def test_calls_end_at_their_deadline_and_keep_nobody_waiting(name):
    """30 calls of a rerank API that has become hostile; meanwhile the event loop is free."""
    two = [{"index": 0, "relevance_score": 0.5}, {"index": 1, "relevance_score": 0.6}]
    now = [whole(json.dumps({"results": two}).encode())]
    candidates = tuple(Passage(f"d{number}", "text") for number in range(2))
    pauses_s = [0.0]

    async def note_pauses() -> None:
        while True:
            start_s = time.perf_counter()
            await asyncio.sleep(0)
            pauses_s.append(time.perf_counter() - start_s)
            await asyncio.sleep(0.01)

    async with hostile(lambda writer: now[0](writer)) as url, opened(api_at(url)) as (engine, ranker):
        assert ranker.problem == ""
        now[0] = ENDLESS[name]
        noting = asyncio.create_task(note_pauses())
        start_s = time.perf_counter()
        steps = (RankStage("zephyr", Single(1000)),)
        deadline_s = asyncio.get_running_loop().time() + 1.0
        asked = [Request(QUERY, candidates, steps, deadline_s=deadline_s) for _ in range(30)]
        outcomes = await asyncio.gather(*map(engine.run, asked), return_exceptions=True)
        noting.cancel()
    assert all(isinstance(outcome, ModelServerUnfit | DeadlineExceeded) for outcome in outcomes), outcomes
    assert time.perf_counter() - start_s < SOON_S
    assert max(pauses_s) < 1.0


async def test_sigterm_ends_a_start_that_waits_for_a_server():
    asked = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.sleep(600)

    async with hostile(silent, health=OK) as url, asyncio.timeout(60):
        served_by = {"kind": "infinity", "url": url, "model": "x"}
        models = [{"name": "identity", "ranker": "identity"}, {"name": "far", "ranker": "api", "served_by": served_by}]
        config = load_config(None, models=models, listen="127.0.0.1:0", device="cpu")
        announced: list[str] = []
        serving = asyncio.create_task(serve(config, announced.append))
        await asked.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(SOON_S):
            await serving
        assert not announced
