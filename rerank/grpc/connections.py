"""Closes the TCP connections of the server, for which grpcio has no API."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from rerank.service.connection_bounds import ConnectionBounds, RefusalLog, address_reason, port_reason, source_of

_OWN_FILES = "/dev/fd"
#: Seconds between two counts of the connections.
_COUNT_S = 1.0


@contextmanager
def bounded_connections(port: int, bounds: ConnectionBounds) -> Iterator[None]:
    """Ends the connections of addresses with too many, and logs that gRPC refuses those of a full port, on a thread.

    gRPC bounds the connections of a port by itself, but not those of an address.
    """
    stop = threading.Event()
    thread = threading.Thread(target=_keep_within_bounds, args=(port, bounds, stop), name="connections", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _keep_within_bounds(port: int, bounds: ConnectionBounds, stop: threading.Event) -> None:
    refusals = RefusalLog("gRPC")
    while not stop.wait(_COUNT_S):
        if len(os.listdir(_OWN_FILES)) <= bounds.per_address:
            continue
        open_, ended = _end_excess(port, bounds.per_address)
        for source, number in ended.items():
            refusals.add(number, address_reason(source, bounds))
        if open_ >= bounds.per_port:
            refusals.add(0, port_reason(bounds))


def _end_excess(port: int, per_address: int) -> tuple[int, Counter[str]]:
    """Ends the connections of each address beyond the bound.

    Returns:
        The number of connections of the port, and address → the number of those that were ended.
    """
    open_, ended = Counter[str](), Counter[str]()
    for each in _sockets_of(port):  # the oldest first, as a rule: a file gets the lowest free number
        with each, suppress(OSError):  # it listens, or the client has closed it
            source = source_of(each.getpeername()[0])
            open_[source] += 1
            if open_[source] > per_address:
                each.shutdown(socket.SHUT_RDWR)
                ended[source] += 1
    return open_.total(), ended


def end_connections(port: int) -> None:
    """Refuses new connections to the port, and ends the open ones after the data that was already written to them.

    When gRPC stops, it answers CANCELLED to the calls that it has received but not passed to a handler yet, and to
    those that arrive until their clients learn of it. If the connection ends first, clients see UNAVAILABLE, which they
    retry. gRPC logs an error about the socket that listened: "Failed accept4".
    """
    for is_listening in (True, False):
        for each in _sockets_of(port):
            with each, suppress(OSError):  # the client may have closed it
                if bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is is_listening:
                    each.shutdown(socket.SHUT_RDWR if is_listening else socket.SHUT_WR)


def end_connection_of(port: int, peer: str) -> None:
    """Ends the connection of a client at once, and drops what was written to it and not read.

    Args:
        port: the port of the server.
        peer: the client as gRPC names it, such as "ipv4:127.0.0.1:40000" or "ipv6:%5B::1%5D:40000".
    """
    host, _, client_port = unquote(peer).partition(":")[2].rpartition(":")
    for each in _sockets_of(port):
        with each, suppress(OSError):  # the client may have closed it
            found_host, found_port = each.getpeername()[:2]
            if (found_host.removeprefix("::ffff:"), found_port) == (host.strip("[]"), int(client_port)):
                each.shutdown(socket.SHUT_RDWR)


def _sockets_of(port: int) -> Iterator[socket.socket]:
    """Duplicates of this process's TCP sockets with this local port."""
    for name in os.listdir(_OWN_FILES):
        with suppress(OSError):  # closed since it was listed
            descriptor = os.dup(int(name))
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                continue
            each = socket.socket(fileno=descriptor)
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockname()[1] == port:
                yield each
            else:
                each.close()
