"""Attacks on the HTTP port: bodies of millions of values, in tiny chunks, or of long documents."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter

from scripts.attacks.target import Target
from scripts.random_requests import words

_MB = 2**20
_TIMEOUT_S = 120.0
#: How long an attack that sends again and again goes on.
_LENGTH_S = 15.0
#: Requests of each attack, on a connection each, and how many of them at the same time.
_REQUESTS, _AT_ONCE = 40, 4
#: Documents of a request that divides them, their length in characters, and the most parts of each.
_DOCUMENTS, _CHARS, _PARTS = 5, 198_000, 200


async def http_numbers(target: Target) -> Counter[str]:
    """Bodies of 16 MB with numbers instead of documents."""
    return await _posted(target, "/v2/rerank", _repeated(b"1,", 16 * _MB - 100))


async def http_numbers_within_the_limit(target: Target) -> Counter[str]:
    """Bodies of 64 kB with as many numbers as a body may have."""
    return await _posted(target, "/v2/rerank", _repeated(b"1,", 64_000), requests=1000)


async def http_unknown_fields(target: Target) -> Counter[str]:
    """Bodies of 500 kB with as many unknown fields as a body may have."""
    fields = b",".join(b'"field %d": 1' % number for number in range(30_000))
    return await _posted(target, "/v2/rerank", b"{%s}" % fields, requests=200)


async def http_escaped_text(target: Target) -> Counter[str]:
    """Bodies of 16 MB with one document of escaped characters."""
    return await _posted(target, "/v2/rerank", b'{"query":"q","documents":["%s"]}' % (rb"\u00e9" * (16 * _MB // 6 - 9)))


async def http_large_requests(target: Target) -> Counter[str]:
    """60 requests of 16 MB at once, with 80 texts that are as long as is allowed."""
    body = b'{"model":"identity","query":"q","texts":["%s"]}' % b'","'.join([b"some words " * 18_000] * 80)
    return await _posted(target, "/rerank", body, requests=60, at_once=60)


async def http_tiny_chunks(target: Target) -> Counter[str]:
    """Bodies of 500 kB in chunks of one byte."""
    body = b"1\r\n \r\n" * 500_000 + b"0\r\n\r\n"
    return await _posted(target, "/v2/rerank", body, length="transfer-encoding: chunked")


async def openapi_requests(target: Target) -> Counter[str]:
    """64 connections that ask for the description of the port again and again."""
    end_s, ends = time.monotonic() + _LENGTH_S, Counter[str]()

    async def repeat() -> None:
        while time.monotonic() < end_s:
            ends[await _status(target.http_address, b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")] += 1

    await asyncio.gather(*(repeat() for _ in range(64)))
    return ends


async def malformed_chunks(target: Target) -> Counter[str]:
    """Bodies of another content type whose first chunk has no length."""
    lines = ("POST /v2/rerank HTTP/1.1", "host: localhost", "content-type: text/plain", "transfer-encoding: chunked")
    message = "\r\n".join([*lines, "", "no length\r\n"]).encode()
    ends = Counter[str]()
    for _ in range(2000):
        ends[await _status(target.http_address, message)] += 1
    return ends


async def half_bodies(target: Target) -> Counter[str]:
    """300 connections that announce 100 bytes, send one, and stay; one that ends is opened again."""
    end_s, ends = time.monotonic() + _LENGTH_S, Counter[str]()
    message = (
        b"POST /v2/rerank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )

    async def hold() -> None:
        while time.monotonic() < end_s:
            try:
                ends[await asyncio.wait_for(_status(target.http_address, message), end_s - time.monotonic())] += 1
            except TimeoutError:
                ends["open"] += 1

    await asyncio.gather(*(hold() for _ in range(300)))
    return ends


async def unfinished_bodies(target: Target) -> Counter[str]:
    """64 connections that send 15 MB of a body without its last byte, and stay."""
    body = b'{"query":"q","documents":["' + b"x" * (15 * _MB)
    lines = ("POST /v2/rerank HTTP/1.1", "host: localhost", "content-type: application/json")
    message = "\r\n".join([*lines, f"content-length: {len(body) + 1}", "", ""]).encode() + body

    async def stay() -> str:
        try:
            return await asyncio.wait_for(_status(target.http_address, message), _LENGTH_S)
        except TimeoutError:
            return "open"

    return Counter(await asyncio.gather(*(stay() for _ in range(64))))


async def divided_requests(target: Target) -> Counter[str]:
    """32 requests at once with five documents of 198 kB in sentences of one letter, in up to 200 parts each."""
    return await _divided(target, "pe-rank", "a. " * (_CHARS // 3))


async def divided_words(target: Target) -> Counter[str]:
    """The same with documents of words."""
    return await _divided(target, "pe-rank", words(random.Random(0), _CHARS))


async def divided_requests_to_default(target: Target) -> Counter[str]:
    """The same to the default model, a fusion, which scores all parts."""
    return await _divided(target, "default", words(random.Random(0), _CHARS))


async def _divided(target: Target, model: str, text: str) -> Counter[str]:
    documents = [f"{place} {text}" for place in range(_DOCUMENTS)]
    body = {"model": model, "query": "history", "documents": documents, "max_chunks_per_doc": _PARTS}
    return await _posted(target, "/v2/rerank", json.dumps(body).encode(), requests=32, at_once=32)


def _repeated(element: bytes, size: int) -> bytes:
    """A body of about this size with a list of equal documents."""
    return b'{"query":"q","documents":[%s1]}' % (element * (size // len(element)))


async def _posted(
    target: Target, path: str, body: bytes, requests: int = _REQUESTS, at_once: int = _AT_ONCE, length: str = ""
) -> Counter[str]:
    """The statuses of equal requests, each on a new connection."""
    lines = (
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        length or f"content-length: {len(body)}",
    )
    message = "\r\n".join([*lines, "", ""]).encode() + body
    turn = asyncio.Semaphore(at_once)

    async def post() -> str:
        async with turn:
            try:
                return await asyncio.wait_for(_status(target.http_address, message), _TIMEOUT_S)
            except TimeoutError:
                return "no answer"

    return Counter(await asyncio.gather(*(post() for _ in range(requests))))


async def _status(address: str, message: bytes) -> str:
    """The status of a request, such as "400"; also if the service answers before it has read the body."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(message)
        line = await reader.readline()
        return line.split()[1].decode() if line else "ended by the service"
    except ConnectionError:
        return "ended by the service"
    finally:
        writer.transport.abort()
