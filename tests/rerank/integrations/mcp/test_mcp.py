"""The MCP server with the official client: its tools, limits, errors and keys, over HTTP and over standard input."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.config import Limits
from rerank.config.http import HttpConfig
from rerank.rankers.identity import IdentityRanker
from tests.doc_pages import blocks
from tests.fakes import HeldRanker, NumberRanker
from tests.http_client import HttpClient, http_service
from tests.serving import TIMEOUT_S, identity_service
from tests.test_doc_commands import check_command

if TYPE_CHECKING:
    from mcp import Client

    from rerank.models.encoder import Encoder
    from rerank.retrieval.index import Index
    from tests.serving import Served

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")

HTTP = HttpConfig(listen="127.0.0.1:0")
CANDIDATES = ["relevance 1", "relevance 3", {"doc_id": "best", "text": "relevance 7", "title": "T", "score": 2}]


@pytest.fixture(scope="module")
def http(encoder: Encoder, index: Index) -> Iterator[tuple[Served, HttpClient]]:
    """A service with an index and small limits."""
    limits = Limits(max_candidates=20, max_query_chars=100, max_message_bytes=20_000)
    rankers = {"number": NumberRanker(), "identity": IdentityRanker()}
    with http_service(encoder, rankers, index, http=HTTP, limits=limits) as service:
        yield service


@asynccontextmanager
async def connected(client: HttpClient, key: str = "", mode: str = "auto") -> AsyncIterator[Client]:
    """The official client. Its modes are those of the protocol: with a handshake, and without."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http_client:
        transport = streamable_http_client(f"http://{client.address}/mcp", http_client=http_client)
        async with mcp.Client(transport, mode=mode) as opened:
            yield opened


def told(result: Any) -> dict[str, Any]:
    """The content of an answer, which is the same in both forms."""
    assert not result.is_error, result.content
    (text,) = result.content
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


def refusal(result: Any) -> str:
    assert result.is_error
    (text,) = result.content
    return text.text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_search_and_rerank_in_both_modes_of_the_protocol(
    http: tuple[Served, HttpClient], mode: str
) -> None:
    async with connected(http[1], mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [*tools] == ["search", "rerank"]
        assert "12 passages" in tools["search"].description
        assert tools["rerank"].input_schema["properties"]["model"]["enum"] == ["number", "identity"]
        reranked = told(await client.call_tool("rerank", {"query": "q", "candidates": CANDIDATES}))
        assert [item["doc_id"] for item in reranked["results"]] == ["best", "1", "0"]
        assert reranked["model"] == "number"
        assert reranked["completeness"] == "full"
        found = told(
            await client.call_tool("search", {"query": "flea life cycle", "first_stage": "bm25", "model": "identity"})
        )
        assert found["results"][0]["doc_id"] == "flea"
        assert "20 days" in found["results"][0]["text"]


async def test_every_described_argument_is_taken(http: tuple[Served, HttpClient]) -> None:
    values: dict[str, Any] = {
        "query": "flea", "model": "identity", "instruction": "", "top_n": 1, "depth": 3, "first_stage": "dense",
        "candidates": CANDIDATES, "ordered": True,
    }  # fmt: skip
    async with connected(http[1]) as client:
        for tool in (await client.list_tools()).tools:
            described = tool.input_schema["properties"].keys()
            answer = told(await client.call_tool(tool.name, {name: values[name] for name in described}))
            assert len(answer["results"]) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("rerank", {"query": " ", "candidates": ["a"]}, "INVALID_ARGUMENT: query: the query is empty"),
        ("rerank", {"query": "q"}, "INVALID_ARGUMENT: candidates: the list is empty"),
        ("rerank", {"query": "q", "candidates": ["a"] * 21}, "INVALID_ARGUMENT: candidates: 21 "),
        ("rerank", {"query": "q", "candidates": [5]}, r"INVALID_ARGUMENT: candidates: candidates\[0\] is 5"),
        (
            "rerank",
            {"query": "q", "candidates": ["a"], "top_k": 3},
            "INVALID_ARGUMENT: top_k: the tool rerank has no such argument; did you mean top_n. its arguments are "
            "query, model, instruction, candidates, top_n, ordered$",
        ),
        ("search", {"query": "q", "top_n": "3"}, "INVALID_ARGUMENT: top_n: '3' is not of the type integer; send one"),
        ("search", {"query": "q", "ordered": True}, "INVALID_ARGUMENT: ordered: the tool search has no such argument"),
        ("rerank", {"query": "q", "candidates": ["a"], "model": "x"}, "NOT_FOUND: .*'x'"),
        ("search", {"query": "q" * 101}, "INVALID_ARGUMENT: query: 101 characters"),
        ("search", {"query": "q", "first_stage": "bm52"}, "INVALID_ARGUMENT: first_stage: .*bm25"),
        ("serach", {"query": "q"}, "NOT_FOUND: there is no tool 'serach'; use search or rerank"),
    ],
)
async def test_refusal_is_a_tool_error_with_the_name_of_the_status(
    http: tuple[Served, HttpClient], tool: str, arguments: dict[str, Any], message: str
) -> None:
    async with connected(http[1]) as client:
        text = refusal(await client.call_tool(tool, arguments))
    assert re.match(message, text), text
    assert "Traceback" not in text


def initialize(client: HttpClient, **headers: str) -> Any:
    """The reply to the first request of a client."""
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    document = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    return client.post("/mcp", document, accept="application/json, text/event-stream", **headers)


def post(client: HttpClient, body: bytes, **headers: str) -> Any:
    types = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    return client.send("POST", "/mcp", body, types | headers)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 300_000 + b"1]",
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": [' + b"{}," * 300_000 + b"1]}}",
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [' + b"[" * 300_000,
    ],
    ids=["no message", "message", "call of a tool"],
)
def test_values_are_counted_before_they_are_parsed(encoder: Encoder, body: bytes) -> None:
    with http_service(encoder, http=HTTP) as (served, client):
        refused = post(client, body)
        assert refused.status == 400
        assert "it has more than 33000 values" in refused.json["error"]["message"]
        served.wait_until_idle()


async def test_every_message_counts_for_the_key(encoder: Encoder, tmp_path: Path) -> None:
    keys, ranker = tmp_path / "keys.yaml", HeldRanker()
    headers = {"authorization": f"Bearer {add_key(keys, 'few', CallerLimits(max_calls=1))}"}
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    params = {"name": "rerank", "arguments": {"query": "q", "candidates": ["1", "2"]}}
    rerank = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    with http_service(encoder, {"number": ranker}, http=HTTP, keys=keys) as (served, client):
        with socket.create_connection(client.host_and_port) as slow:  # announces a message and does not send it
            head = "\r\n".join(f"{name}: {value}" for name, value in headers.items())
            slow.sendall(
                f"POST /mcp HTTP/1.1\r\nhost: localhost\r\n{head}\r\ncontent-type: application/json\r\n"
                "accept: application/json, text/event-stream\r\ncontent-length: 9\r\n\r\n".encode()
            )
            served.wait_for_calls(1)
            refused = post(client, ping, **headers)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert "1 calls of key few are in flight" in refused.json["error"]["message"]
        served.wait_until_idle()
        reranking = asyncio.create_task(asyncio.to_thread(post, client, rerank, **headers))
        assert await asyncio.to_thread(ranker.entered.wait, TIMEOUT_S)
        assert served.server.calls.number == 1  # the call of the tool, in the place of its message
        assert post(client, ping, **headers).status == 429
        ranker.release.set()
        assert (await reranking).json["result"]["structuredContent"]["results"]
        served.wait_until_idle()
        assert post(client, ping, **headers).status == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:6274", 200),
        ("http://127.0.0.1", 200),
        ("https://[::1]:8080", 200),
        ("http://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost@evil.example", 403),
        ("http://evil.example/localhost", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_message_of_a_foreign_page_is_refused(http: tuple[Served, HttpClient], origin: str, status: int) -> None:
    reply = initialize(http[1], origin=origin)
    assert reply.status == status
    if status == 403:
        assert repr(origin) in reply.json["error"]["message"]


def test_foreign_host_other_methods_and_large_bodies_are_refused(http: tuple[Served, HttpClient]) -> None:
    client = http[1]
    assert initialize(client).status == 200
    foreign = initialize(client, host="evil.example")
    assert foreign.status == 400
    assert b"evil.example" in foreign.body
    assert client.get("/mcp").status == 405
    assert initialize(client, content_type="text/plain").status == 415
    large = client.post("/mcp", {"padding": "x" * 30_000})
    assert large.status == 413
    assert "more than the limit of 20000" in large.json["error"]["message"]
    for broken in (b"", b"{", b"[]", b"[" * 10_000, b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}'):
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        assert client.send("POST", "/mcp", broken, headers).status in (200, 400)


def test_without_the_extra_there_is_no_mcp(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.integrations.mcp.routes.find_spec", lambda _: None)
    with http_service(encoder) as (_, client):
        assert initialize(client).status == 404


def test_command_in_the_settings_of_mcp_clients_exists() -> None:
    (settings,) = blocks(Path(__file__).parents[4] / "docs" / "integrations.md", "json")
    for server in json.loads(settings)["mcpServers"].values():
        check_command([server["command"], *server["args"]])


@pytest.fixture
def stdio(tmp_path: Path) -> Callable[..., Any]:
    """Connects to `rerank mcp ARGUMENTS…`, whose standard error goes to a file."""

    @asynccontextmanager
    async def start(*arguments: str, **environment: str) -> AsyncIterator[Any]:
        from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

        command = ["-m", "rerank.commands.cli", "mcp", *arguments]
        inherited = get_default_environment() | {"OMP_NUM_THREADS": "1"} | environment
        parameters = StdioServerParameters(command=sys.executable, args=command, env=inherited)
        with (tmp_path / "stderr").open("w") as errors:
            async with mcp.Client(stdio_client(parameters, errlog=errors)) as client:
                yield client

    return start


@pytest.mark.slow
async def test_stdio_with_models_and_index_of_its_own(
    stdio: Callable[..., Any], index_folder: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "service.yaml"
    settings.write_text("models: [{name: identity, ranker: identity}]\nlimits: {max_candidates: 3}\ndevice: cpu\n")
    async with stdio("--index", str(index_folder), "--config", str(settings)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "rerank"]
        found = told(await client.call_tool("search", {"query": "flea life cycle", "first_stage": "bm25"}))
        assert found["results"][0]["doc_id"] == "flea"
        refused = refusal(await client.call_tool("rerank", {"query": "q", "candidates": ["a"] * 4}))
        assert refused.startswith("INVALID_ARGUMENT: candidates: 4 ")
    assert "Search OK" in (tmp_path / "stderr").read_text()


@pytest.mark.slow
async def test_stdio_of_a_running_service_uses_its_limits_and_key(
    stdio: Callable[..., Any], encoder: Encoder, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.yaml", "assistant", CallerLimits())
    limits = Limits(max_candidates=3)
    with identity_service(encoder, keys=tmp_path / "keys.yaml", limits=limits) as (served, _, _):
        async with stdio("--target", served.address, RERANK_API_KEY=key) as client:
            arguments = {"query": "q", "candidates": ["a", {"doc_id": "7", "text": "b"}], "ordered": True}
            answer = told(await client.call_tool("rerank", arguments))
            assert [item["doc_id"] for item in answer["results"]] == ["0", "7"]
            refused = refusal(await client.call_tool("rerank", {"query": "q", "candidates": ["a"] * 4}))
            assert refused.startswith("INVALID_ARGUMENT: candidates: 4 ")
            refused = refusal(await client.call_tool("search", {"query": "q", "first_stage": "bm25", "depth": 2}))
            assert refused.startswith("FAILED_PRECONDITION: ")
