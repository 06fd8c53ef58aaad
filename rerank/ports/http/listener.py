"""The listening socket of an HTTP server, which bounds the number of its connections.

At the bound, a new connection takes the place of the one that has waited for a request for longest.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from contextlib import suppress
from typing import Any

from rerank.ports.connection_bounds import ConnectionBounds, address_reason, port_reason, source_of
from rerank.telemetry.logs import CountedLog

#: This many connections may wait until asyncio accepts them, which takes a part of them at a time.
_QUEUE = 2048


class BoundedListener(socket.socket):
    """A listening socket whose `accept` keeps the number of connections within the bounds.

    A connection waits for a request until `begin_request`, and again after `expect_request`.

    Args:
        family, kind, protocol: see `socket.socket`.
        bounds: the most connections at the same time.
    """

    def __init__(self, family: int, kind: int, protocol: int, bounds: ConnectionBounds) -> None:
        super().__init__(family, kind, protocol)
        self._bounds = bounds
        self._open: dict[int, _Accepted] = {}
        self._of_source: Counter[str] = Counter()
        #: Files of the connections that wait for a request; the one that waits for longest is first.
        self._waiting: dict[int, None] = {}
        self._spare = open(os.devnull)  # noqa: SIM115  (its file takes the connection that is refused for want of one)
        self._refusals = CountedLog("HTTP port: {} connections were refused or ended")

    def listen(self, backlog: int = 0) -> None:
        """Listens. The queue is longer than `backlog`, which says how many connections asyncio accepts at a time."""
        super().listen(max(backlog, _QUEUE))

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts the next connection; returns it with the address of its client.

        Raises:
            ConnectionAbortedError: the port is full, and no connection waits that could end for the new one; or no file
                is left for it. asyncio takes this as a client that gave up.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_without_file()
            raise ConnectionAbortedError(str(error)) from error
        source = source_of(address[0])
        if self._of_source[source] >= self._bounds.per_address:
            self._make_room(connection, source, address_reason(source, self._bounds))
        elif len(self._open) >= self._bounds.per_port:
            self._make_room(connection, "", port_reason(self._bounds))
        accepted = _Accepted(connection, source, self)
        self._open[accepted.fileno()] = accepted
        self._of_source[source] += 1
        self.expect_request(accepted.fileno())
        return accepted, address

    def begin_request(self, file: int) -> None:
        """Notes that a request has arrived at the connection with this file descriptor."""
        self._waiting.pop(file, None)

    def expect_request(self, file: int) -> None:
        """Notes that the connection with this file descriptor waits for its next request."""
        self.begin_request(file)
        if file in self._open:
            self._waiting[file] = None

    def leave(self, file: int) -> None:
        """Notes that the connection with this file descriptor closes; no more of it is counted."""
        if left := self._open.pop(file, None):
            self.begin_request(file)
            self._of_source[left.source] -= 1
            if not self._of_source[left.source]:
                del self._of_source[left.source]

    def _refuse_without_file(self) -> None:
        """Ends the next connection, which asyncio would ask for again and again, with a traceback each time."""
        self._refusals.add(1, "the process may open no more files")
        self._spare.close()
        with suppress(OSError):  # other threads may have taken the file
            super().accept()[0].close()
        with suppress(OSError):
            self._spare = open(os.devnull)  # noqa: SIM115

    def close(self) -> None:
        self._spare.close()
        super().close()

    def _make_room(self, new: socket.socket, source: str, reason: str) -> None:
        """Ends the connection that waits for longest, of this source or of any. Raises: ConnectionAbortedError."""
        self._refusals.add(1, reason)
        waiting = (file for file in self._waiting if source in ("", self._open[file].source))
        longest = next(waiting, None)
        if longest is None:
            new.close()
            raise ConnectionAbortedError(reason)
        ended = self._open[longest]
        self.leave(longest)  # now, so that those which wait for asyncio to close them take no place of others
        with suppress(OSError):  # its client has closed it
            ended.shutdown(socket.SHUT_RDWR)


class _Accepted(socket.socket):
    """A connection that tells its listener when it closes."""

    def __init__(self, accepted: socket.socket, source: str, listener: BoundedListener) -> None:
        super().__init__(fileno=accepted.detach())
        self.source, self._listener = source, listener

    def close(self) -> None:
        self._listener.leave(self.fileno())  # before the next connection can have the number of its file
        super().close()
