"""The socket on which the HTTP port accepts connections: no more than its bounds, and never too many open files."""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import finalize

from rerank.service.connection_bounds import ConnectionBounds, RefusalLog, address_reason, port_reason, source_of

#: Connections that may wait until they are accepted. asyncio accepts a part of them at a time.
_QUEUE = 2048


class BoundedListener(socket.socket):
    """A listening socket whose `accept` closes connections beyond the bounds.

    asyncio takes the ConnectionAbortedError of such a connection as one that its client gave up, and goes on. Its own
    handling of too many open files logs a traceback thousands of times a second.

    Args:
        family, kind, protocol: see `socket.socket`.
        bounds: the most connections at the same time.
    """

    def __init__(self, family: int, kind: int, protocol: int, bounds: ConnectionBounds) -> None:
        super().__init__(family, kind, protocol)
        self._bounds = bounds
        self._open: Counter[str] = Counter()
        self._refusals = RefusalLog("HTTP")
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def listen(self, backlog: int = 0) -> None:
        """Listens. `backlog` only says how many connections asyncio accepts at a time; the queue is longer."""
        super().listen(max(backlog, _QUEUE))

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection and the address of its client. Raises: ConnectionAbortedError for one that is refused."""
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_without_a_file()
            raise ConnectionAbortedError("too many open files") from error
        source = source_of(address[0])
        if self._open.total() >= self._bounds.per_port:
            reason = port_reason(self._bounds)
        elif self._open[source] >= self._bounds.per_address:
            reason = address_reason(source, self._bounds)
        else:
            self._open[source] += 1
            return _Counted(connection, lambda: self._leave(source)), address
        connection.close()
        self._refusals.add(1, reason)
        raise ConnectionAbortedError(reason)

    def close(self) -> None:
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _leave(self, source: str) -> None:
        self._open[source] -= 1
        if not self._open[source]:
            del self._open[source]

    def _refuse_without_a_file(self) -> None:
        """Closes the next connection with the one file that is kept for it; otherwise it would wait, and be tried again
        at once."""
        os.close(self._spare)
        try:
            super().accept()[0].close()
        except OSError:
            pass
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        self._refusals.add(1, "the process has as many open files as it may (ulimit -n)")


class _Counted(socket.socket):
    """A connection that calls a function when it is closed."""

    def __init__(self, connection: socket.socket, on_close: Callable[[], None]) -> None:
        super().__init__(connection.family, connection.type, connection.proto, connection.detach())
        self._leave = finalize(self, on_close)  # once, also for a connection that is dropped without being closed

    def close(self) -> None:
        super().close()
        self._leave()
