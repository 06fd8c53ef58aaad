"""Attacks on the HTTP port: bodies of millions of values, bodies in chunks of one byte, and handshakes that stall."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

from scripts.service import connect
from scripts.trials.attacks.registry import attack, attack_on, attack_with_tls
from scripts.trials.calls import Target

_MB = 2**20
_MCP_ACCEPT = "application/json, text/event-stream"
_TIMEOUT_S = 60.0
#: Requests of each attack, on connections of their own, and how many of them at the same time.
_REQUESTS, _AT_ONCE = 40, 4
#: How long clients wait that do not go on with their handshake.
_STAY_S = 15.0


@attack
async def http_numbers(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 16 MB with numbers in the place of documents."""
    return await _posted(target, "/v2/rerank", _repeated("documents", b"1,"))


@attack
async def http_empty_documents(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 16 MB with empty documents."""
    return await _posted(target, "/v2/rerank", _repeated("documents", b'"",'))


@attack
async def http_texts(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 16 MB in the form of TEI, with numbers in the place of texts."""
    return await _posted(target, "/rerank", _repeated("texts", b"1,"))


@attack
async def http_candidates(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 16 MB in the form of gRPC, with empty candidates."""
    return await _posted(target, "/rerank", _repeated("candidates", b"{},"))


@attack
async def http_nested_lists(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 16 MB with lists in lists, as deep as the parser allows."""
    return await _posted(target, "/v2/rerank", _repeated("documents", b"[" * 190 + b"]" * 190 + b","))


@attack
async def http_numbers_within_the_limit(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 64 kB with as many numbers as a body may have."""
    return await _posted(target, "/v2/rerank", _repeated("documents", b"1,", 64_000), requests=1000)


@attack
async def http_unknown_fields(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 500 kB with as many unknown fields as a body may have."""
    fields = b",".join(b'"field %d": 1' % number for number in range(30_000))
    return await _posted(target, "/v2/rerank", b"{%s}" % fields, requests=200)


@attack
async def http_escaped_text(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 16 MB with one document of escaped characters."""
    return await _posted(target, "/v2/rerank", _repeated("documents", b"\\u00e9", around=b'"'))


@attack
async def http_large_requests(target: Target, draw: random.Random) -> Counter[str]:
    """60 requests of 16 MB at once, with 80 texts that are as long as is allowed."""
    body = b'{"model":"identity","query":"q","texts":["%s"]}' % b'","'.join([b"some words " * 18_000] * 80)
    return await _posted(target, "/rerank", body, requests=60, at_once=60)


@attack
async def http_tiny_chunks(target: Target, draw: random.Random) -> Counter[str]:
    """Bodies of 500 kB in chunks of one byte."""
    body = b"1\r\n \r\n" * 500_000 + b"0\r\n\r\n"
    return await _posted(target, "/v2/rerank", body, header="transfer-encoding: chunked")


@attack_on({"http": {"listen": "127.0.0.1:0", "mcp": True}})
async def mcp_nested_lists(target: Target, draw: random.Random) -> Counter[str]:
    """Messages of 4 MB to /mcp that are lists in a list, on eight connections."""
    body = b"[%s1]" % (b"[]," * ((4 * _MB - 100) // 3))
    return await _posted(target, "/mcp", body, requests=200, at_once=8, accept=_MCP_ACCEPT)


@attack_on({"http": {"listen": "127.0.0.1:0", "mcp": True}})
async def mcp_large_calls(target: Target, draw: random.Random) -> Counter[str]:
    """Calls of the tool rerank of 4 MB, with 20 long texts, on eight connections."""
    arguments = {"query": "q", "model": "identity", "candidates": ["some words " * 18_000] * 20}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rerank", "arguments": arguments}}
    return await _posted(target, "/mcp", json.dumps(call).encode(), requests=200, at_once=8, accept=_MCP_ACCEPT)


@attack_with_tls
async def https_slow_handshakes(target: Target, draw: random.Random) -> Counter[str]:
    """300 connections that send the beginning of a TLS handshake, and nothing more for 15 s."""
    return Counter(await asyncio.gather(*(_stalled_handshake(target.http_address) for _ in range(300))))


async def _stalled_handshake(address: str) -> str:
    """Stops in the middle of the first message of TLS; returns whether the service ended the connection."""
    reader, writer = await connect(address)
    try:
        writer.write(b"\x16\x03\x01\x02\x00\x01")
        await asyncio.wait_for(reader.read(), _STAY_S)
    except TimeoutError:
        return "still open"
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return "ended by the service"


def _repeated(field: str, element: bytes, size: int = 16 * _MB - 100, around: bytes = b"") -> bytes:
    """A body of about this size with a list of equal elements, or one text of equal parts between quotes."""
    end = b"" if around else b"1"
    return b'{"query":"q","%s":[%s%s%s%s]}' % (field.encode(), around, element * (size // len(element)), around, end)


async def _posted(
    target: Target,
    path: str,
    body: bytes,
    requests: int = _REQUESTS,
    at_once: int = _AT_ONCE,
    header: str = "",
    accept: str = "*/*",
) -> Counter[str]:
    """The statuses of equal requests, each on a connection of its own."""
    header = f"{header or f'content-length: {len(body)}'}\r\naccept: {accept}"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{header}\r\n\r\n".encode()
    turn = asyncio.Semaphore(at_once)

    async def post() -> str:
        async with turn:
            try:
                return await asyncio.wait_for(_status(target.http_address, head, body), _TIMEOUT_S)
            except TimeoutError:
                return "no answer"

    return Counter(await asyncio.gather(*(post() for _ in range(requests))))


async def _status(address: str, head: bytes, body: bytes) -> str:
    """The status of a request, such as "400"; also if the service answers before it has read the body."""
    reader, writer = await connect(address)
    try:
        writer.write(head)
        writer.write(body)
        line = await reader.readline()
        return line.split()[1].decode() if line else "ended by the service"
    except ConnectionError:
        return "ended by the service"
    finally:
        writer.transport.abort()
