"""`rerank demo`: its example, and the port of its inspector."""

from __future__ import annotations

import io
import re
import socket

import pytest

from rerank.client.client import RerankClient
from rerank.commands import demo
from rerank.commands.console import PlainConsole
from tests.serving import Served


def test_example_is_a_table_and_one_line_of_what_ran(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_EXAMPLE", "how long does a flea live")
    file = io.StringIO()
    with RerankClient(service.address) as client:
        demo._show_example(client, PlainConsole(file=file))
    title, head, *rows, line = file.getvalue().splitlines()[:-1]
    assert title.startswith("“how long does a flea live”: the first 20 of BM25")
    assert head.split("\t") == ["rank", "BM25", "the default model", "BM25 rank", "passage of the default model"]
    assert rows
    assert re.fullmatch(r"pe-rank, \S+ · 1 window · \d+ tokens · \d+ ms", line), line


def test_taken_port_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = demo._free_port(port)
        assert other != port
        socket.create_server(("127.0.0.1", other)).close()
    assert demo._free_port(port) == port
