"""Attacks by connections that send nothing, little, or too much, to a service that may open 512 files."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter

from scripts.attacks.target import Target

#: Files that the service may open.
OPEN_FILES = 512
_LENGTH_S = 15.0
_CONNECTIONS = 600
#: The attacker's address; honest callers have another.
_SOURCE = ("127.0.0.2", 0)
_CHUNK = b"x-header: " + b"x" * 60_000 + b"\r\n"


async def silent_connections(target: Target) -> Counter[str]:
    """600 connections to each port that send nothing; one that ends is opened again."""
    addresses = (target.address, target.http_address, target.metrics_address)
    return await _held([address for address in addresses for _ in range(_CONNECTIONS)], b"")


async def slow_headers(target: Target) -> Counter[str]:
    """600 connections to HTTP and to the metrics that send half of a header."""
    addresses = (target.http_address, target.metrics_address)
    return await _held([address for address in addresses for _ in range(_CONNECTIONS)], b"GET / HTTP/1.1\r\nx: ")


async def endless_headers(target: Target) -> Counter[str]:
    """16 connections to HTTP and to the metrics that send headers without an end."""
    addresses = (target.http_address, target.metrics_address)
    return await _held([address for address in addresses for _ in range(8)], b"GET / HTTP/1.1\r\n", _CHUNK)


async def metrics_requests(target: Target) -> Counter[str]:
    """Eight connections that read /metrics again and again, and eight with a request line of 70 kB."""
    lines = (b"/metrics", b"/" + b"x" * 70_000)
    ends = [_asked(target.metrics_address, line) for line in lines for _ in range(8)]
    return sum(await asyncio.gather(*ends), Counter[str]())


async def _held(addresses: list[str], first: bytes, then: bytes = b"") -> Counter[str]:
    """Holds a connection to each address; returns how often one was opened and how many are open in the end."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    end_s, ends = time.monotonic() + _LENGTH_S, Counter[str]()

    async def hold(address: str) -> None:
        host, _, port = address.rpartition(":")
        while time.monotonic() < end_s:
            try:
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=_SOURCE)
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


async def _asked(address: str, path: bytes) -> Counter[str]:
    """The statuses of requests for a path, one after the other, each on a new connection."""
    host, _, port = address.rpartition(":")
    end_s, ends = time.monotonic() + _LENGTH_S, Counter[str]()
    while time.monotonic() < end_s:
        try:
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=_SOURCE)
            writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path)
            line = (await reader.read()).split(b"\r\n", 1)[0]
            writer.transport.abort()
            ends[line.split()[1].decode() if line else "ended by the service"] += 1
        except OSError:
            ends["ended by the service"] += 1
    return ends
