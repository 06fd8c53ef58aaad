"""Attacks on the ports of HTTP and the metrics: bodies of millions of values, long documents, silent connections."""

from __future__ import annotations

import asyncio
import json
import random
import resource
from collections import Counter

from scripts.attacks.target import Attack, Target, address_of, held, outcomes, repeated
from scripts.random_requests import words

_MB = 2**20
_TIMEOUT_S = 120.0
#: Documents of a request that divides them, their length in characters, and the most parts of each.
_DOCUMENTS, _CHARS, _PARTS = 5, 198_000, 200
#: The address of attacks that hold connections, which honest callers do not have; and the files that the service has.
_SOURCE, _FEW_FILES = ("127.0.0.2", 0), 512
_POST = "POST /v2/rerank HTTP/1.1"
_JSON = ("host: localhost", "content-type: application/json")
_CHUNKED_TEXT = ("content-type: text/plain", "transfer-encoding: chunked")


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


async def _posted(
    target: Target, body: bytes, requests: int = 40, at_once: int = 4, path: str = "/v2/rerank", length: str = ""
) -> Counter[str]:
    """The statuses of equal requests, each on a new connection.

    Args:
        at_once: how many of them are sent at the same time.
        length: the header that says where the body ends, if it is not the length of the body.
    """
    message = _message(f"POST {path} HTTP/1.1", *_JSON, length or f"content-length: {len(body)}") + body
    turn = asyncio.Semaphore(at_once)

    async def post() -> str:
        async with turn:
            return await _status(target.http_address, message, _TIMEOUT_S)

    return await outcomes(post() for _ in range(requests))


async def _again(address: str, at_once: int, *lines: str, body: bytes = b"") -> Counter[str]:
    """The statuses of equal requests that follow one another, each on a new connection."""
    message = _message(*lines, "host: localhost") + body
    return await repeated(lambda: _status(address, message, source=_SOURCE), at_once)


def _numbers(size: int) -> bytes:
    """A body of about this size with numbers instead of documents."""
    return b'{"query":"q","documents":[%s1]}' % (b"1," * (size // 2))


async def _large_requests(target: Target) -> Counter[str]:
    body = b'{"model":"identity","query":"q","texts":["%s"]}' % b'","'.join([b"some words " * 18_000] * 80)
    return await _posted(target, body, requests=60, at_once=60, path="/rerank")


def _divided(model: str, sentences: bool = False) -> Attack:
    """32 requests at once with five documents of 198 kB, in up to 200 parts each.

    Args:
        sentences: whether they have sentences of one letter, instead of words.
    """

    async def attack(target: Target) -> Counter[str]:
        text = "a. " * (_CHARS // 3) if sentences else words(random.Random(0), _CHARS)
        documents = [f"{place} {text}" for place in range(_DOCUMENTS)]
        body = {"model": model, "query": "history", "documents": documents, "max_chunks_per_doc": _PARTS}
        return await _posted(target, json.dumps(body).encode(), requests=32, at_once=32)

    return Attack(attack)


def _holding(connections: int, first: bytes, grpc: bool = False) -> Attack:
    """Connections to HTTP and to the metrics, and to gRPC if said so, to a service that may open few files."""

    async def attack(target: Target) -> Counter[str]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        addresses = [target.http_address, target.metrics_address, *[target.address] * grpc]
        return await held(addresses * connections, first, source=_SOURCE)

    return Attack(attack, open_files=_FEW_FILES)


async def _metrics_requests(target: Target) -> Counter[str]:
    paths = ("/metrics", "/" + "x" * 70_000)
    asked = (_again(target.metrics_address, 8, f"GET {path} HTTP/1.1", "connection: close") for path in paths)
    return sum(await asyncio.gather(*asked), Counter[str]())


ATTACKS: dict[str, Attack] = {
    # Bodies of 16 MB with numbers instead of documents.
    "http-numbers": Attack(lambda target: _posted(target, _numbers(16 * _MB - 100))),
    # Bodies of 64 kB with as many numbers as a body may have.
    "http-numbers-within-the-limit": Attack(lambda target: _posted(target, _numbers(64_000), requests=1000)),
    # Bodies of 500 kB with as many unknown fields as a body may have.
    "http-unknown-fields": Attack(
        lambda target: _posted(
            target, b"{%s}" % b",".join(b'"field %d": 1' % number for number in range(30_000)), requests=200
        )
    ),
    # Bodies of 16 MB with one document of escaped characters.
    "http-escaped-text": Attack(
        lambda target: _posted(target, b'{"query":"q","documents":["%s"]}' % (rb"\u00e9" * (16 * _MB // 6 - 9)))
    ),
    # 60 requests of 16 MB at once, with 80 texts that are as long as is allowed.
    "http-large-requests": Attack(_large_requests),
    # Bodies of 500 kB in chunks of one byte.
    "http-tiny-chunks": Attack(
        lambda target: _posted(target, b"1\r\n \r\n" * 500_000 + b"0\r\n\r\n", length="transfer-encoding: chunked")
    ),
    # 64 connections that ask for the description of the port again and again.
    "openapi-requests": Attack(lambda target: _again(target.http_address, 64, "GET /openapi.json HTTP/1.1")),
    # Bodies of another content type whose first chunk has no length.
    "malformed-chunks": Attack(
        lambda target: _again(target.http_address, 1, _POST, *_CHUNKED_TEXT, body=b"no length\r\n")
    ),
    # 300 connections that announce 100 bytes, send one, and stay; one that ends is opened again.
    "half-bodies": Attack(
        lambda target: held([target.http_address] * 300, _message(_POST, *_JSON, "content-length: 100") + b"{")
    ),
    # 64 connections that send 15 MB of a body without its last byte, and stay.
    "unfinished-bodies": Attack(
        lambda target: held(
            [target.http_address] * 64, _message(_POST, *_JSON, f"content-length: {15 * _MB + 1}") + b'"' * (15 * _MB)
        )
    ),
    "divided-requests": _divided("pe-rank", sentences=True),
    "divided-words": _divided("pe-rank"),
    # The default is a fusion, which scores all parts.
    "divided-requests-to-default": _divided("default"),
    # Connections that send nothing, that send half of a header, and that send headers of 12 MB.
    "silent-connections": _holding(600, b"", grpc=True),
    "slow-headers": _holding(600, b"GET / HTTP/1.1\r\nx: "),
    "endless-headers": _holding(8, b"GET / HTTP/1.1\r\n" + (b"x-header: " + b"x" * 60_000 + b"\r\n") * 200),
    # Eight connections that read /metrics again and again, and eight with a request line of 70 kB.
    "metrics-requests": Attack(_metrics_requests, open_files=_FEW_FILES),
}
