"""`rerank demo`: its example, and the port of its inspector."""

from __future__ import annotations

import socket

from rerank.commands import demo


def test_taken_port_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = demo._free_port(port)
        assert other != port
        socket.create_server(("127.0.0.1", other)).close()
    assert demo._free_port(port) == port
