"""Several inference servers: which one a call goes to, what is sent once more, and how a failing one comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from rerank.errors import ModelServerUnavailable, ModelServerUnfit, RerankError
from rerank.inference_servers.api import Post
from rerank.inference_servers.pool import ServerPool
from rerank.inference_servers.server import Server, client_of
from tests.rerank.inference_servers.stand_in import Reply, StandIn, stand_in, until

ASK = Post("/ask", {})
REPLIES = {"GET /health null": Reply(), "POST /ask {}": Reply(200, "done")}


class Checks:
    """Counts the full checks of servers; fails with `error` if it is set."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.error: RerankError | None = None

    async def __call__(self, server: Server) -> None:
        self.urls.append(server.url)
        if self.error:
            raise self.error


@asynccontextmanager
async def pool_of(
    *servers: StandIn, timeout_s: float = 30.0, checks: Checks | None = None
) -> AsyncIterator[ServerPool]:
    async with client_of(timeout_s, "") as client:
        pool = ServerPool("zephyr", [Server(server.url, client) for server in servers], checks or Checks())
        await pool.open()
        yield pool
        await pool.close()


@asynccontextmanager
async def stand_ins(n: int) -> AsyncIterator[list[StandIn]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(stand_in(REPLIES)) for _ in range(n)]


async def ask(server: Server) -> Any:
    return await server.post(ASK)


def asked(server: StandIn) -> int:
    return sum(path == "/ask" for path, _ in server.requests)


def once(reply: Reply) -> Callable[[str, Any], Reply | None]:
    """A fault of the first question only."""
    left = [reply]
    return lambda path, body: left.pop() if path == "/ask" and left else None


def always(reply: Reply) -> Callable[[str, Any], Reply | None]:
    return lambda path, body: reply if path == "/ask" else None


async def test_calls_go_to_the_server_with_the_fewest_in_flight() -> None:
    async with stand_ins(3) as servers, pool_of(*servers) as pool:
        for server in servers:
            server.fault = always(Reply(200, "done", delay_s=0.3))
        assert await asyncio.gather(*(pool.call(ask) for _ in range(9))) == ["done"] * 9
        assert [server.most_running for server in servers] == [3, 3, 3]


@pytest.mark.parametrize(
    "reply",
    [Reply(429, "busy"), Reply(500, "oops"), Reply(503, "loading"), Reply(200, "done", cut=3), Reply(200, b'{"half')],
    ids=["429", "500", "503", "connection breaks in the answer", "half an answer"],
)
async def test_call_without_an_answer_is_sent_to_another_server(reply: Reply) -> None:
    async with stand_ins(2) as servers, pool_of(*servers) as pool:
        servers[0].fault = always(reply)
        assert await asyncio.gather(*(pool.call(ask) for _ in range(4))) == ["done"] * 4
        assert asked(servers[1]) == 4
        await asyncio.sleep(0.1)
        assert pool.problem == ""


async def test_server_that_never_answers_is_left_for_another_one() -> None:
    async with stand_ins(2) as servers, pool_of(*servers, timeout_s=0.3) as pool:
        servers[0].fault = always(Reply(200, "late", delay_s=60))
        assert await asyncio.gather(*(pool.call(ask) for _ in range(4))) == ["done"] * 4


async def test_attempts_are_bounded_and_the_error_says_what_the_server_said() -> None:
    async with stand_ins(1) as (server,), pool_of(server) as pool:
        server.fault = always(Reply(503, {"error": "out of blocks"}))
        with pytest.raises(ModelServerUnavailable, match=f"{server.url}/ask answered 503: .*out of blocks.*3 attempts"):
            await pool.call(ask)
        assert asked(server) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_refused_request_is_not_sent_again(status: int) -> None:
    async with stand_ins(2) as servers, pool_of(*servers) as pool:
        for server in servers:
            server.fault = always(Reply(status, {"error": "no such model"}))
        with pytest.raises(ModelServerUnfit, match=rf"/ask answered {status}: .*no such model"):
            await pool.call(ask)
        assert sum(map(asked, servers)) == 1


async def test_killed_server_is_left_out_and_checked_in_full_when_it_is_back() -> None:
    checks = Checks()
    async with stand_ins(1) as (server,), pool_of(server, checks=checks) as pool:
        assert checks.urls == [server.url]
        await server.kill()
        with pytest.raises(ModelServerUnavailable, match=server.url):
            await pool.call(ask)
        await until(lambda: pool.problem != "")
        start_s = time.perf_counter()
        with pytest.raises(ModelServerUnavailable, match="start the server"):
            await pool.call(ask)
        assert time.perf_counter() - start_s < 0.5  # without an attempt
        await server.start()
        await until(lambda: pool.problem == "")
        assert await pool.call(ask) == "done"
        assert checks.urls == [server.url] * 2


async def test_server_that_does_not_fit_is_not_used() -> None:
    checks = Checks()
    checks.error = ModelServerUnfit("it serves another model")
    async with stand_ins(1) as (server,), pool_of(server, checks=checks) as pool:
        with pytest.raises(ModelServerUnfit, match=r"zephyr.*another model"):
            await pool.call(ask)
        assert asked(server) == 0


async def test_cancelled_call_ends_at_the_server() -> None:
    async with stand_ins(1) as (server,), pool_of(server) as pool:
        server.fault = always(Reply(200, "late", delay_s=60))
        call = asyncio.create_task(pool.call(ask))
        await until(lambda: server.running == 1)
        call.cancel()
        await until(lambda: server.running == 0, within_s=1.0)
