"""`rerank demo`: the port of its inspector."""

from __future__ import annotations

import socket

from rerank.commands.demo import _free_port


def test_taken_port_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = _free_port(port)
        assert other != port
        socket.create_server(("127.0.0.1", other)).close()
    assert _free_port(port) == port
