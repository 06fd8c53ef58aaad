"""Limits the open connections of ports. It works on sockets, because grpcio has no API to count and close them."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from typing import TypeAlias
from urllib.parse import unquote

from rerank.config import ServiceConfig
from rerank.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)

#: Number of open files that are not connections of a port: libraries, models, the index, inference servers, metrics.
_OTHER_FILES = 256
#: Largest number of connections of a port, if enough files may be open.
_MAX_CONNECTIONS = 8000
#: Smallest limit on the connections of a port, however few files may be open.
_MIN_CONNECTIONS = 16
#: Seconds that a new connection has for TLS and for the first frames of HTTP/2.
HANDSHAKE_S = 10.0
#: Folder with an entry for each file descriptor of this process.
_OWN_FILES = "/dev/fd"
#: Seconds between two counts of the connections.
_COUNT_S = 1.0
#: A connection without a call in flight is silent if the client has sent nothing for this time, in milliseconds.
_SILENT_MS = 1000
#: Largest share of a full port's connections that end at one count, to make room for new ones.
_ROOM = 1 / 16
#: The socket option that reads Linux's struct tcp_info; None on other systems.
_TCP_INFO = getattr(socket, "TCP_INFO", None)
#: Offset in this struct, in bytes, of the number of milliseconds since data was received.
_LAST_DATA_RECEIVED = 52

#: Host and port of a client.
Client: TypeAlias = tuple[str, int]
#: Port → clients whose connections end in the next iteration of the event loop.
_ENDING: dict[int, set[Client]] = {}


def raise_open_files_limit() -> None:
    """Raises the soft limit of open files to the hard limit. If the system does not allow it, logs a warning."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS has a lower limit than "unlimited"
            log.warning("the limit of %d open files stays, as it cannot be raised to %d: %s", soft, hard, error)


def max_connections(config: ServiceConfig) -> int:
    """Returns the largest number of connections of a port: 8,000, or fewer if the process may open fewer files."""
    ports = 1 + sum(map(bool, (config.http, config.telemetry.metrics)))
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if open_files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return min(_MAX_CONNECTIONS, max(_MIN_CONNECTIONS, (open_files - _OTHER_FILES) // ports))


def refusal_reason(most: int) -> str:
    """The reason, for the log, why connections are refused."""
    return f"{most} are open, the most of a port"


@contextmanager
def bounded_connections(port: int, most: int, peers: Callable[[], Collection[str]]) -> Iterator[None]:
    """On a thread, ends connections of a full port that are silent for longest, so that it can accept new ones.

    gRPC itself refuses new connections to a full port.

    Args:
        port: the port of the server.
        most: largest number of connections at the same time.
        peers: returns the clients with a call in flight, as gRPC names them; called on the thread.
    """
    stop = threading.Event()
    arguments = (port, most, peers, stop)
    thread = threading.Thread(target=_keep_room, args=arguments, name="connections", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _keep_room(port: int, most: int, peers: Callable[[], Collection[str]], stop: threading.Event) -> None:
    refusals = RateLimitedLog("gRPC port: {} connections were refused or ended")
    while not stop.wait(_COUNT_S):
        try:
            if len(os.listdir(_OWN_FILES)) < most:
                continue
        except OSError as error:  # no file is left to count with; some close by themselves
            refusals.add(0, f"they cannot be counted: {error}")
            continue
        silent_ms = _silent_ms(port, {_client_of(peer) for peer in peers()})
        if len(silent_ms) >= most:
            silent = [client for client, ms in silent_ms.items() if ms >= _SILENT_MS]
            longest = sorted(silent, key=silent_ms.__getitem__, reverse=True)[: ceil(_ROOM * most)]
            refusals.add(len(longest), refusal_reason(most))
            _end_connections_of(port, longest)


def _silent_ms(port: int, busy: Collection[Client]) -> dict[Client, int]:
    """Client → milliseconds since data came from it; -1 for a client with a call in flight."""
    silent_ms = {}
    for connection in _sockets_of(port):
        with connection, suppress(OSError):  # it listens, or the client has closed it
            client = _client_at(connection)
            received = (
                connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA_RECEIVED + 4)
                if _TCP_INFO
                else bytes(56)
            )
            silent_ms[client] = -1 if client in busy else int.from_bytes(received[_LAST_DATA_RECEIVED:], sys.byteorder)
    return silent_ms


def end_connections(port: int) -> None:
    """Refuses new connections to the port, and ends the open ones after the data that was already written to them.

    When gRPC stops, it answers CANCELLED to the calls that it has received but not passed to a handler yet, and to
    calls that arrive before their clients know. If the connection ends first, clients see UNAVAILABLE, which they
    retry. gRPC logs an error about the socket that listened: "Failed accept4".
    """
    for is_listening in (True, False):
        for connection in _sockets_of(port):
            with connection, suppress(OSError):  # the client may have closed it
                if bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is is_listening:
                    connection.shutdown(socket.SHUT_RDWR if is_listening else socket.SHUT_WR)


def end_connection_of(port: int, peer: str) -> None:
    """Ends the connection of a client soon; data that the client has not read is lost. Call it on the event loop.

    Finding a socket takes a look at all open files. So it happens on a thread, once for all clients of that moment.

    Args:
        port: the port of the server.
        peer: the client as gRPC names it, such as "ipv4:127.0.0.1:40000" or "ipv6:%5B::1%5D:40000".
    """
    if port not in _ENDING:
        asyncio.get_running_loop().call_soon(_end_together, port)
    _ENDING.setdefault(port, set()).add(_client_of(peer))


def _end_together(port: int) -> None:
    asyncio.get_running_loop().run_in_executor(None, _end_connections_of, port, _ENDING.pop(port))


def _end_connections_of(port: int, clients: Collection[Client]) -> None:
    for connection in _sockets_of(port):
        with connection, suppress(OSError):  # it listens, or the client has closed it
            if _client_at(connection) in clients:
                connection.shutdown(socket.SHUT_RDWR)


def _client_of(peer: str) -> Client:
    """Returns the client of a gRPC peer, such as "ipv4:127.0.0.1:40000"."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _client_at(connection: socket.socket) -> Client:
    """The client of a connection. Raises: OSError if it has none."""
    host, port = connection.getpeername()[:2]
    return host.removeprefix("::ffff:"), port


def _sockets_of(port: int) -> Iterator[socket.socket]:
    """Yields duplicates of this process's TCP sockets with this local port; the caller closes them."""
    for name in os.listdir(_OWN_FILES):
        with suppress(OSError):  # closed since it was listed
            descriptor = os.dup(int(name))
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                continue
            found = socket.socket(fileno=descriptor)
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port:
                yield found
            else:
                found.close()
