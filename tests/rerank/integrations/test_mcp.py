"""`rerank mcp`: its service, and its tools with the official client: limits, errors and keys."""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from rerank.access.credentials import Credentials
from rerank.access.keys import CallerLimits, add_key
from rerank.client.client import AsyncRerankClient
from rerank.config import ServiceConfig
from rerank.rankers.identity import IdentityRanker
from rerank.retrieval.index import Index
from rerank.v1 import rerank_pb2 as pb
from tests.doc_pages import blocks
from tests.fakes import NumberRanker
from tests.serving import free_port, running_service
from tests.test_doc_commands import check_command

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")

ONE = {"query": "q", "candidates": ["a"]}
CANDIDATES = ["relevance 1", "relevance 3", {"doc_id": "best", "text": "relevance 7", "title": "T", "score": 2}]


@pytest.fixture(scope="module")
def address(index: Index) -> Iterator[str]:
    """The address of a service with an index and small limits."""
    rankers = {"number": NumberRanker(), "identity": IdentityRanker()}
    limits = {"max_candidates": 20, "max_query_chars": 100}
    with running_service(rankers, index, limits=limits) as served:
        yield served.address


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    """The official client, whose server asks the service at the address."""
    from rerank.integrations.mcp.tools import tool_server

    async with AsyncRerankClient(address) as service, mcp.Client(await tool_server(service)) as client:
        yield client


def content_of(result: Any) -> dict[str, Any]:
    """The content of an answer, which is the same in both forms."""
    assert not result.is_error, result.content
    (text,) = result.content
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


def refusal(result: Any) -> str:
    assert result.is_error
    (text,) = result.content
    return text.text


async def test_tools_search_and_rerank(address):
    async with connected(address) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [*tools] == ["search", "rerank"]
        assert "12 passages" in tools["search"].description
        assert tools["rerank"].input_schema["properties"]["model"]["enum"] == ["number", "identity"]
        reranked = content_of(await client.call_tool("rerank", {"query": "q", "candidates": CANDIDATES}))
        assert [item["doc_id"] for item in reranked["results"]] == ["best", "1", "0"]
        assert (reranked["model"], reranked["completeness"]) == ("number", "full")
        arguments = {"query": "flea life cycle", "first_stage": "bm25", "model": "identity"}
        found = content_of(await client.call_tool("search", arguments))
        assert found["results"][0]["doc_id"] == "flea"
        assert "20 days" in found["results"][0]["text"]


async def test_order_of_candidates_counts_only_if_it_is_said_and_a_search_gives_ten_results(address):
    candidates = [{"doc_id": text, "text": text} for text in ("one text", "another text")]

    async def order(given: list[dict[str, str]], **options: object) -> list[str]:
        call = {"query": "q", "model": "identity", "candidates": given} | options
        return [item["doc_id"] for item in content_of(await client.call_tool("rerank", call))["results"]]

    async with connected(address) as client:
        assert await order(candidates) == await order(candidates[::-1])
        for given in (candidates, candidates[::-1]):
            assert await order(given, ordered=True) == [candidate["doc_id"] for candidate in given]
        found = content_of(await client.call_tool("search", {"query": "moon", "first_stage": "dense"}))
        assert len(found["results"]) == 10


async def test_model_that_is_not_served_is_not_offered_and_a_reply_says_why_it_is_in_part():
    from rerank.integrations.mcp.tools import tool_server

    class Service:
        async def list_models(self) -> pb.ListModelsResponse:
            return pb.ListModelsResponse(models=[pb.Model(name="damaged", problem="cut"), pb.Model(name="whole")])

        async def rerank(self, query: str, candidates: list[str], **options: object) -> pb.RerankResponse:
            return pb.RerankResponse(execution=pb.Execution(completeness=pb.COMPLETENESS_NONE, reason="too late"))

    async with mcp.Client(await tool_server(cast(Any, Service()))) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.input_schema["properties"]["model"]["enum"] == ["whole"]
        reply = content_of(await client.call_tool("rerank", ONE))
        assert (reply["completeness"], reply["reason"]) == ("none", "too late")


async def test_every_described_argument_is_taken(address):
    async with connected(address) as client:
        values: dict[str, Any] = {
            "query": "flea", "model": "identity", "instruction": "", "top_n": 1, "depth": 3, "first_stage": "dense",
            "candidates": CANDIDATES, "ordered": True,
        }  # fmt: skip
        for tool in (await client.list_tools()).tools:
            described = tool.input_schema["properties"].keys()
            answer = content_of(await client.call_tool(tool.name, {name: values[name] for name in described}))
            assert len(answer["results"]) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("rerank", {"query": " ", "candidates": ["a"]}, "INVALID_ARGUMENT: query: the query is empty"),
        ("rerank", {"query": "q"}, "INVALID_ARGUMENT: candidates: the list is empty"),
        (
            "rerank",
            {**ONE, "top_k": 3},
            "INVALID_ARGUMENT: top_k: .* no such field; did you mean top_n. fields: query, c",
        ),
        ("search", {"query": "q", "top_n": "3"}, "INVALID_ARGUMENT: top_n: '3' is not a value of this field"),
        ("search", {"query": "q", "ordered": True}, "INVALID_ARGUMENT: ordered: SearchRequest has no such field"),
        ("rerank", {**ONE, "model": "x"}, "NOT_FOUND: .*'x'"),
        ("search", {"query": "q", "self": 1}, "INVALID_ARGUMENT: arguments: .* multiple values for argument 'self'"),
        ("serach", {"query": "q"}, "NOT_FOUND: there is no tool 'serach'; use search or rerank"),
    ],
)
async def test_refusal_is_a_tool_error_with_the_name_of_the_status(address, tool, arguments, message):
    async with connected(address) as client:
        text = refusal(await client.call_tool(tool, arguments))
    assert re.match(message, text), text


def test_command_in_the_settings_of_mcp_clients_exists():
    (settings,) = blocks(Path(__file__).parents[3] / "docs" / "integrations.md", "json")
    for server in json.loads(settings)["mcpServers"].values():
        check_command([server["command"], *server["args"]])


@pytest.mark.slow
async def test_stdio_of_a_running_service_without_an_index_uses_its_key(tmp_path):
    from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

    key = add_key(tmp_path / "keys.yaml", "assistant", CallerLimits())
    with running_service(keys=tmp_path / "keys.yaml") as served, (tmp_path / "stderr").open("w") as errors:
        command = ["-m", "rerank.commands.cli", "mcp", "--target", served.address]
        environment = get_default_environment() | {"OMP_NUM_THREADS": "1", "RERANK_API_KEY": key}
        process = StdioServerParameters(command=sys.executable, args=command, env=environment)
        async with mcp.Client(stdio_client(process, errlog=errors)) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["rerank"]
            arguments = {"query": "q", "candidates": ["a", {"doc_id": "7", "text": "b"}], "ordered": True}
            answer = content_of(await client.call_tool("rerank", arguments))
            assert [item["doc_id"] for item in answer["results"]] == ["0", "7"]
            refused = refusal(await client.call_tool("search", {"query": "q", "first_stage": "bm25", "depth": 2}))
            assert refused.startswith("FAILED_PRECONDITION: ")


def test_mistakes_of_the_command_are_one_line(rerank, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    assert f"no answer from {address}: is `rerank serve` running there?" in rerank("mcp", "--target", address).error
    assert "not HOST:PORT" in rerank("mcp", "--target", "localhost").error
    assert "leave out --index and --config" in rerank("mcp", "--target", address, "--index", tmp_path).error
    assert str(tmp_path / "none") in rerank("mcp", "--index", tmp_path / "none").error
    (tmp_path / "keys.yaml").write_text("[]")
    with running_service(keys=tmp_path / "keys.yaml") as served:
        refused = rerank("mcp", "--target", served.address)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith("error: this service needs an API key; send the header")


def test_own_service_has_the_index_and_the_settings_but_no_other_port_and_no_keys(
    rerank, index_folder, tmp_path, monkeypatch
):
    started: list[ServiceConfig] = []
    served: list[str] = []

    @contextmanager
    def service_process(config: ServiceConfig) -> Iterator[str]:
        started.append(config)
        yield "its address"

    async def serve_tools(address: str, credentials: Credentials) -> None:
        served.append(address)

    monkeypatch.setattr("rerank.commands.service_process.service_process", service_process)
    monkeypatch.setattr("rerank.integrations.mcp.tools.serve_tools", serve_tools)
    (tmp_path / "keys.yaml").write_text("[]")
    settings = tmp_path / "service.yaml"
    settings.write_text(
        "{models: [{name: identity, ranker: identity}], limits: {max_candidates: 3}, keys: keys.yaml,"
        " listen: 0.0.0.0:1, http: 127.0.0.1:2, telemetry: {metrics: 127.0.0.1:3}, device: cpu}"
    )
    assert rerank("mcp", "--index", index_folder, "--config", settings).code == 0
    (config,) = started
    assert (config.index, config.limits.max_candidates, config.listen) == (index_folder, 3, "127.0.0.1:0")
    assert (config.http, config.keys, config.telemetry.metrics) == (None, None, None)
    assert served == ["its address"]
