"""An inference server: what is sent to it once more, and how it comes back after it failed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import pytest

from rerank.errors import ConfigError, ModelServerUnavailable, ModelServerUnfit, RerankError
from rerank.inference_servers.api import Post
from rerank.inference_servers.server import NoAnswer, Server, WatchedServer, client_of
from tests.rerank.inference_servers.stand_in import Reply, StandIn, stand_in, until
from tests.serving import free_port

#: Sends a question by way of the watched server.
Ask: TypeAlias = Callable[[], Awaitable[Any]]

ASK = Post("/ask", {})
REPLIES = {"GET /health null": Reply(), "POST /ask {}": Reply(200, "done")}


class Checks:
    """Counts the full checks of the server; fails with `error` if it is set."""

    def __init__(self) -> None:
        self.number = 0
        self.error: RerankError | None = None

    async def __call__(self) -> None:
        self.number += 1
        if self.error:
            raise self.error


@asynccontextmanager
async def served(checks: Checks | None = None) -> AsyncIterator[tuple[StandIn, WatchedServer, Ask]]:
    async with stand_in(REPLIES) as server, client_of("http://127.0.0.1", "") as client:
        sent_to = Server(server.url, client)
        watched = WatchedServer("zephyr", sent_to, checks or Checks())
        await watched.open()
        yield server, watched, partial(watched.call, partial(sent_to.post, ASK))
        await watched.close()


def asked(server: StandIn) -> int:
    return sum(path == "/ask" for path, _ in server.requests)


def once(reply: Reply) -> Callable[[str, Any], Reply | None]:
    """A fault of the first question only."""
    left = [reply]
    return lambda path, body: left.pop() if path == "/ask" and left else None


def always(reply: Reply) -> Callable[[str, Any], Reply | None]:
    return lambda path, body: reply if path == "/ask" else None


@pytest.mark.parametrize(
    "reply",
    [Reply(429, "busy"), Reply(500, "oops"), Reply(503, "loading"), Reply(200, "done", cut=3), Reply(200, b'{"half')],
    ids=["429", "500", "503", "connection breaks in the answer", "half an answer"],
)
async def test_call_without_an_answer_is_sent_again(reply):
    async with served() as (server, _, ask):
        server.fault = once(reply)
        assert await ask() == "done"
        assert asked(server) == 2


async def test_attempts_are_bounded_and_the_error_says_what_the_server_said():
    async with served() as (server, _, ask):
        server.fault = always(Reply(503, {"error": "out of blocks"}))
        with pytest.raises(ModelServerUnavailable, match=f"{server.url}/ask answered 503: .*out of blocks.*3 attempts"):
            await ask()
        assert asked(server) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_refused_request_is_not_sent_again(status):
    async with served() as (server, _, ask):
        server.fault = always(Reply(status, {"error": "no such model"}))
        with pytest.raises(ModelServerUnfit, match=rf"/ask answered {status}: .*no such model"):
            await ask()
        assert asked(server) == 1


async def test_killed_server_is_left_out_and_checked_in_full_when_it_is_back():
    checks = Checks()
    async with served(checks) as (server, watched, ask):
        assert checks.number == 1
        await server.kill()
        with pytest.raises(ModelServerUnavailable, match=server.url):
            await ask()
        await until(lambda: watched.problem != "")
        start_s = time.perf_counter()
        with pytest.raises(ModelServerUnavailable, match="start the server"):
            await ask()
        assert time.perf_counter() - start_s < 0.5  # without an attempt
        await server.start()
        await until(lambda: watched.problem == "")
        assert await ask() == "done"
        assert checks.number == 2


async def test_server_that_does_not_fit_is_not_used():
    checks = Checks()
    checks.error = ModelServerUnfit("it serves another model")
    async with served(checks) as (server, _, ask):
        with pytest.raises(ModelServerUnfit, match=r"zephyr.*another model"):
            await ask()
        assert asked(server) == 0


async def test_cancelled_call_ends_at_the_server():
    async with served() as (server, _, ask):
        server.fault = always(Reply(200, "late", delay_s=60))
        call = asyncio.ensure_future(ask())
        await until(lambda: server.running == 1)
        call.cancel()
        await until(lambda: server.running == 0, within_s=1.0)


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
async def test_server_on_the_loopback_is_called_directly(variable, monkeypatch):
    monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    async with served() as (_, _, ask):
        assert await ask() == "done"


async def test_proxy_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    url = "http://192.0.2.1:8000"
    async with client_of(url, "") as client:
        with pytest.raises(NoAnswer, match=r"by the proxy of HTTP_PROXY, unless no_proxy lists 192\.0\.2\.1"):
            await Server(url, client).post(ASK)


def test_proxy_of_an_unknown_kind_is_named(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"http://h cannot be called .*by the proxy of ALL_PROXY.*gopher"):
        client_of("http://h", "")
