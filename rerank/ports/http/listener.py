"""The socket of the HTTP port, which bounds the number of connections and the open files.

At the bound, a new connection takes the place of the one that has waited for a request for longest.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary, finalize

from rerank.ports.connection_bounds import ConnectionBounds, RefusalLog, address_reason, port_reason, source_of

#: This many connections may wait until asyncio accepts them, which takes a part of them at a time.
_QUEUE = 2048


class BoundedListener(socket.socket):
    """A listening socket whose `accept` keeps the number of connections within the bounds.

    A connection waits for a request until `begin_request`, and again after `expect_request`.

    `accept` raises ConnectionAbortedError for a connection that it refuses. asyncio takes this as one that its client
    gave up, and goes on. asyncio's own handling of too many open files logs a traceback thousands of times a second.

    Args:
        family, kind, protocol: see `socket.socket`.
        bounds: the most connections at the same time.
    """

    def __init__(self, family: int, kind: int, protocol: int, bounds: ConnectionBounds) -> None:
        super().__init__(family, kind, protocol)
        self._bounds = bounds
        self._open: Counter[str] = Counter()
        self._accepted: WeakValueDictionary[int, _Counted] = WeakValueDictionary()
        #: The connections that wait for a request, by file and by address; the one that waits for longest is first.
        self._waiting: dict[int, str] = {}
        self._waiting_of: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._refusals = RefusalLog("HTTP")
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def listen(self, backlog: int = 0) -> None:
        """Listens. The queue is longer than `backlog`, which says how many connections asyncio accepts at a time."""
        super().listen(max(backlog, _QUEUE))

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts the next connection; returns it with the address of its client.

        Raises: ConnectionAbortedError if the port is full, and no connection waits that could end for the new one.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_without_a_file()
            raise ConnectionAbortedError("too many open files") from error
        source = source_of(address[0])
        if self._open[source] >= self._bounds.per_address:
            self._make_room(connection, self._waiting_of[source], address_reason(source, self._bounds))
        elif self._open.total() >= self._bounds.per_port:
            self._make_room(connection, self._waiting, port_reason(self._bounds))
        self._open[source] += 1
        counted = _Counted(connection, source, self._leave)
        self._accepted[counted.file] = counted
        self.expect_request(counted.file)
        return counted, address

    def begin_request(self, file: int) -> None:
        """Notes that a request has arrived at the connection with this file descriptor."""
        if source := self._waiting.pop(file, None):
            del self._waiting_of[source][file]

    def expect_request(self, file: int) -> None:
        """Notes that the connection with this file descriptor waits for its next request."""
        self.begin_request(file)
        if connection := self._accepted.get(file):
            self._waiting[file] = connection.source
            self._waiting_of[connection.source][file] = None

    def _make_room(self, new: socket.socket, waiting: Iterable[int], reason: str) -> None:
        """Ends the first of the waiting connections. If none waits, it closes the new one.

        Raises: ConnectionAbortedError.
        """
        self._refusals.add(1, reason)
        longest = next(iter(waiting), None)
        if longest is None:
            new.close()
            raise ConnectionAbortedError(reason)
        self.begin_request(longest)
        with suppress(OSError):  # its client has closed it
            self._accepted[longest].shutdown(socket.SHUT_RDWR)  # asyncio closes its socket when it learns of it

    def close(self) -> None:
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _leave(self, file: int, source: str) -> None:
        self.begin_request(file)
        self._accepted.pop(file, None)
        self._open[source] -= 1
        if not self._open[source]:
            del self._open[source]
            self._waiting_of.pop(source, None)

    def _refuse_without_a_file(self) -> None:
        """Closes the next connection by means of a spare file. Otherwise asyncio would try it again at once."""
        os.close(self._spare)
        try:
            super().accept()[0].close()
        except OSError:
            pass
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        self._refusals.add(1, "the process has as many open files as it may (ulimit -n)")


class _Counted(socket.socket):
    """A connection that calls a function with its file and its source when it closes."""

    def __init__(self, connection: socket.socket, source: str, on_close: Callable[[int, str], None]) -> None:
        super().__init__(connection.family, connection.type, connection.proto, connection.detach())
        self.file, self.source = self.fileno(), source
        self._leave = finalize(self, on_close, self.file, source)  # once, also if it is dropped without being closed

    def close(self) -> None:
        self._leave()  # before the next connection can have the number of its file
        super().close()
