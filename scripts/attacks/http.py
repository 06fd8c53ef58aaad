"""Attacks on the ports of HTTP and the metrics: bodies of millions of values, long documents, silent connections."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from collections import Counter

from scripts.attacks.target import LENGTH_S, ServiceOf, Target, address_of, outcomes, repeated, served_by
from scripts.random_requests import words

_MB = 2**20
_TIMEOUT_S = 120.0
#: Requests of each attack, on a connection each, and how many of them at the same time.
_REQUESTS, _AT_ONCE = 40, 4
#: Documents of a request that divides them, their length in characters, and the most parts of each.
_DOCUMENTS, _CHARS, _PARTS = 5, 198_000, 200
#: Connections to each port that are held, from another address than honest callers have.
_CONNECTIONS, _SOURCE = 600, ("127.0.0.2", 0)
_CHUNK = b"x-header: " + b"x" * 60_000 + b"\r\n"
_on_few_files = served_by(ServiceOf(open_files=512))
_JSON = ("POST /v2/rerank HTTP/1.1", "host: localhost", "content-type: application/json")


async def http_numbers(target: Target) -> Counter[str]:
    """Bodies of 16 MB with numbers instead of documents."""
    return await _posted(target, _repeated(b"1,", 16 * _MB - 100))


async def http_numbers_within_the_limit(target: Target) -> Counter[str]:
    """Bodies of 64 kB with as many numbers as a body may have."""
    return await _posted(target, _repeated(b"1,", 64_000), requests=1000)


async def http_unknown_fields(target: Target) -> Counter[str]:
    """Bodies of 500 kB with as many unknown fields as a body may have."""
    fields = b",".join(b'"field %d": 1' % number for number in range(30_000))
    return await _posted(target, b"{%s}" % fields, requests=200)


async def http_escaped_text(target: Target) -> Counter[str]:
    """Bodies of 16 MB with one document of escaped characters."""
    return await _posted(target, b'{"query":"q","documents":["%s"]}' % (rb"\u00e9" * (16 * _MB // 6 - 9)))


async def http_large_requests(target: Target) -> Counter[str]:
    """60 requests of 16 MB at once, with 80 texts that are as long as is allowed."""
    body = b'{"model":"identity","query":"q","texts":["%s"]}' % b'","'.join([b"some words " * 18_000] * 80)
    return await _posted(target, body, requests=60, at_once=60, path="/rerank")


async def http_tiny_chunks(target: Target) -> Counter[str]:
    """Bodies of 500 kB in chunks of one byte."""
    return await _posted(target, b"1\r\n \r\n" * 500_000 + b"0\r\n\r\n", length="transfer-encoding: chunked")


async def openapi_requests(target: Target) -> Counter[str]:
    """64 connections that ask for the description of the port again and again."""
    message = _message("GET /openapi.json HTTP/1.1", "host: localhost")
    return await repeated(lambda: _status(target.http_address, message), 64)


async def malformed_chunks(target: Target) -> Counter[str]:
    """Bodies of another content type whose first chunk has no length."""
    lines = ("POST /v2/rerank HTTP/1.1", "host: localhost", "content-type: text/plain", "transfer-encoding: chunked")
    message, ends = _message(*lines) + b"no length\r\n", Counter[str]()
    for _ in range(2000):
        ends[await _status(target.http_address, message)] += 1
    return ends


async def half_bodies(target: Target) -> Counter[str]:
    """300 connections that announce 100 bytes, send one, and stay; one that ends is opened again."""
    message = _message(*_JSON, "content-length: 100") + b"{"
    return await repeated(lambda: _status(target.http_address, message), 300, stays=True)


async def unfinished_bodies(target: Target) -> Counter[str]:
    """64 connections that send 15 MB of a body without its last byte, and stay."""
    body = b'{"query":"q","documents":["' + b"x" * (15 * _MB)
    message = _message(*_JSON, f"content-length: {len(body) + 1}") + body
    return await outcomes(_status(target.http_address, message, LENGTH_S) for _ in range(64))


async def divided_requests(target: Target) -> Counter[str]:
    """32 requests at once with five documents of 198 kB in sentences of one letter, in up to 200 parts each."""
    return await _divided(target, "pe-rank", "a. " * (_CHARS // 3))


async def divided_words(target: Target) -> Counter[str]:
    """The same with documents of words."""
    return await _divided(target, "pe-rank", words(random.Random(0), _CHARS))


async def divided_requests_to_default(target: Target) -> Counter[str]:
    """The same to the default model, a fusion, which scores all parts."""
    return await _divided(target, "default", words(random.Random(0), _CHARS))


@_on_few_files
async def silent_connections(target: Target) -> Counter[str]:
    """600 connections to each port that send nothing; one that ends is opened again."""
    return await _held([target.address, target.http_address, target.metrics_address] * _CONNECTIONS, b"")


@_on_few_files
async def slow_headers(target: Target) -> Counter[str]:
    """600 connections to HTTP and to the metrics that send half of a header."""
    return await _held([target.http_address, target.metrics_address] * _CONNECTIONS, b"GET / HTTP/1.1\r\nx: ")


@_on_few_files
async def endless_headers(target: Target) -> Counter[str]:
    """16 connections to HTTP and to the metrics that send headers without an end."""
    return await _held([target.http_address, target.metrics_address] * 8, b"GET / HTTP/1.1\r\n", _CHUNK)


@_on_few_files
async def metrics_requests(target: Target) -> Counter[str]:
    """Eight connections that read /metrics again and again, and eight with a request line of 70 kB."""

    async def get(path: str) -> Counter[str]:
        message = _message(f"GET {path} HTTP/1.1", "host: localhost", "connection: close")
        return await repeated(lambda: _status(target.metrics_address, message, source=_SOURCE), 8)

    return sum(await asyncio.gather(get("/metrics"), get("/" + "x" * 70_000)), Counter[str]())


async def _divided(target: Target, model: str, text: str) -> Counter[str]:
    documents = [f"{place} {text}" for place in range(_DOCUMENTS)]
    body = {"model": model, "query": "history", "documents": documents, "max_chunks_per_doc": _PARTS}
    return await _posted(target, json.dumps(body).encode(), requests=32, at_once=32)


def _repeated(element: bytes, size: int) -> bytes:
    """A body of about this size with a list of equal documents."""
    return b'{"query":"q","documents":[%s1]}' % (element * (size // len(element)))


async def _posted(
    target: Target,
    body: bytes,
    requests: int = _REQUESTS,
    at_once: int = _AT_ONCE,
    path: str = "/v2/rerank",
    length: str = "",
) -> Counter[str]:
    """The statuses of equal requests, each on a new connection."""
    lines = (f"POST {path} HTTP/1.1", *_JSON[1:], length or f"content-length: {len(body)}")
    message, turn = _message(*lines) + body, asyncio.Semaphore(at_once)

    async def post() -> str:
        async with turn:
            return await _status(target.http_address, message, _TIMEOUT_S)

    return await outcomes(post() for _ in range(requests))


def _message(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


async def _status(
    address: str, message: bytes, timeout_s: float | None = None, source: tuple[str, int] | None = None
) -> str:
    """The status of a request, such as "400", also if the service answers before it has read the body.

    After `timeout_s` it is "no answer".
    """
    try:
        reader, writer = await asyncio.open_connection(*address_of(address), local_addr=source)
    except OSError:
        await asyncio.sleep(0.05)
        return "refused"
    try:
        async with asyncio.timeout(timeout_s):
            writer.write(message)
            line = await reader.readline()
            return line.split()[1].decode() if line else "ended by the service"
    except TimeoutError:
        return "no answer"
    except OSError:
        return "ended by the service"
    finally:
        writer.transport.abort()


async def _held(addresses: list[str], first: bytes, then: bytes = b"") -> Counter[str]:
    """Holds a connection to each address; returns how often one was opened and how many are open in the end."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    end_s, ends = time.monotonic() + LENGTH_S, Counter[str]()

    async def hold(address: str) -> None:
        while time.monotonic() < end_s:
            try:
                reader, writer = await asyncio.open_connection(*address_of(address), local_addr=_SOURCE)
            except OSError:
                ends["refused"] += 1
                await asyncio.sleep(0.05)
                continue
            try:
                writer.write(first)
                async with asyncio.timeout(end_s - time.monotonic()):
                    while then:
                        writer.write(then)
                        await writer.drain()
                    await reader.read()
                ends["ended by the service"] += 1
            except OSError as error:
                ends["open" if isinstance(error, TimeoutError) else "ended by the service"] += 1
            finally:
                writer.transport.abort()

    await asyncio.gather(*map(hold, addresses))
    return ends
