"""Attacks on the connections of the service: thousands that are silent, of TCP on each port, and of HTTP/2."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from rerank.ports.connection_bounds import raise_open_files_limit
from scripts.service import connect
from scripts.trials.attacks.registry import attack
from scripts.trials.calls import Target

_CONNECTIONS = 2000
#: How long the clients stay.
_STAY_S = 15.0
#: Connections that are being opened at the same time.
_OPENING = 100
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Types of HTTP/2 frames, and the flag of those that answer others.
_SETTINGS, _PING, _ACK = 4, 6, 1
_HEADER_BYTES = 9


@attack
async def silent_connections(target: Target, draw: random.Random) -> Counter[str]:
    """2,000 TCP connections to each port that send nothing for 15 s."""
    ports = target.address, target.http_address
    return sum(await asyncio.gather(*(_many(address, _send_nothing) for address in ports)), Counter())


@attack
async def grpc_connections(target: Target, draw: random.Random) -> Counter[str]:
    """2,000 HTTP/2 connections that answer the service's settings and pings, and make no call for 15 s."""
    return await _many(target.address, _answer_frames)


async def _many(
    address: str, stay: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> Counter[str]:
    """The outcomes of connections that stay as a function does."""
    raise_open_files_limit()
    opening = asyncio.Semaphore(_OPENING)

    async def one() -> str:
        try:
            async with opening:
                reader, writer = await connect(address)
            try:
                await asyncio.wait_for(stay(reader, writer), _STAY_S)
            finally:
                writer.close()
        except TimeoutError:
            return "stayed"
        except (OSError, asyncio.IncompleteReadError):
            pass
        return "ended by the service"

    return Counter(await asyncio.gather(*(one() for _ in range(_CONNECTIONS))))


async def _send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Returns when the service closes the connection."""
    await reader.read()


async def _answer_frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Raises: IncompleteReadError when the service closes the connection."""
    writer.write(_PREFACE + _frame(_SETTINGS))
    while True:
        header = await reader.readexactly(_HEADER_BYTES)
        kind, flags = header[3], header[4]
        payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, _ACK, payload if kind == _PING else b""))


def _frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame of the connection itself (stream 0)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4) + payload
