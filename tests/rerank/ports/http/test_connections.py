"""The socket of the HTTP port: connections beyond the bound are closed, those that wait for longest first."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from rerank.ports.http.connections import BoundedListener

TIMEOUT_S = 10


@pytest.fixture
def listener() -> Iterator[BoundedListener]:
    """A listening socket for two connections."""
    with BoundedListener(socket.AF_INET, socket.SOCK_STREAM, 0, 2) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(listener: BoundedListener, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(listener.getsockname(), TIMEOUT_S))


def accept(listener: BoundedListener, stack: ExitStack, busy: bool = True) -> socket.socket:
    """The accepted end of the next connection, whose request has arrived or not."""
    accepted = stack.enter_context(listener.accept()[0])
    if busy:
        listener.begin_request(accepted.fileno())
    return accepted


def test_connection_that_waits_for_longest_ends_for_a_new_one(listener, stack):
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


def test_new_connection_is_refused_while_no_open_one_waits_for_a_request(listener, stack):
    for _ in range(2):
        connect(listener, stack)
        accept(listener, stack)
    refused = connect(listener, stack)
    with pytest.raises(ConnectionAbortedError, match="2 are open, the most of a port"):
        listener.accept()
    assert refused.recv(10) == b""


def test_connection_for_which_no_file_is_left_ends_and_later_ones_are_taken(listener, stack):
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
