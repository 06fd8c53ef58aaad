"""The socket of the HTTP port: connections beyond the bounds are closed, those that wait for longest first."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from rerank.ports.connections import ConnectionBounds
from rerank.ports.http.connections import BoundedListener

TIMEOUT_S = 10


@pytest.fixture
def listener() -> Iterator[BoundedListener]:
    """A listening socket for three connections, two of one address."""
    with BoundedListener(socket.AF_INET, socket.SOCK_STREAM, 0, ConnectionBounds(3, 2)) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(listener: BoundedListener, stack: ExitStack, source: str = "127.0.0.1") -> socket.socket:
    return stack.enter_context(socket.create_connection(listener.getsockname(), TIMEOUT_S, source_address=(source, 0)))


def accept(listener: BoundedListener, stack: ExitStack, busy: bool = True) -> socket.socket:
    """The accepted end of the next connection, whose request has arrived or not."""
    accepted = stack.enter_context(listener.accept()[0])
    if busy:
        listener.begin_request(accepted.fileno())
    return accepted


def test_connection_that_waits_for_longest_ends_for_a_new_one(listener: BoundedListener, stack: ExitStack) -> None:
    clients, accepted = [], []
    for _ in range(2):
        clients.append(connect(listener, stack))
        accepted.append(accept(listener, stack, busy=False))
    listener.begin_request(accepted[0].fileno())
    listener.expect_request(accepted[0].fileno())  # its answer has left: now the second one waits for longer
    clients.append(connect(listener, stack))
    accept(listener, stack).sendall(b"welcome")
    assert clients[2].recv(10) == b"welcome"
    assert clients[1].recv(10) == b""
    accepted[1].close()
    accepted[0].sendall(b"still open")
    assert clients[0].recv(10) == b"still open"


def test_connection_of_another_address_ends_only_for_the_bound_of_the_port(
    listener: BoundedListener, stack: ExitStack
) -> None:
    other = connect(listener, stack, "127.0.0.2")
    accept(listener, stack, busy=False)
    for _ in range(2):
        connect(listener, stack)
        accept(listener, stack)
    connect(listener, stack)
    with pytest.raises(ConnectionAbortedError, match="the most of one address"):
        listener.accept()
    connect(listener, stack, "127.0.0.3")
    accept(listener, stack)
    assert other.recv(10) == b""


def test_connections_that_end_for_new_ones_do_not_count_until_they_are_closed(
    listener: BoundedListener, stack: ExitStack
) -> None:
    """Otherwise one address could fill the port with them, and end the connections of others."""
    other = connect(listener, stack, "127.0.0.2")
    honest = accept(listener, stack, busy=False)
    for _ in range(10):
        connect(listener, stack)
        accept(listener, stack, busy=False)
    honest.sendall(b"still open")
    assert other.recv(10) == b"still open"


def test_connection_for_which_no_file_is_left_ends_and_later_ones_are_taken(
    listener: BoundedListener, stack: ExitStack
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused, waiting = connect(listener, stack), connect(listener, stack)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    with ExitStack() as files:
        with suppress(OSError):  # too many open files
            while True:
                files.enter_context(open(os.devnull))
        with pytest.raises(ConnectionAbortedError, match="Too many open files"):
            listener.accept()
        assert refused.recv(10) == b""
    accept(listener, stack).sendall(b"welcome")
    assert waiting.recv(10) == b"welcome"
