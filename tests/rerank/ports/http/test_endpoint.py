"""Headers of answers: every text in them is a value that servers and proxies take."""

from __future__ import annotations

import re

import pytest

from rerank.ports.http.endpoint import header_value

#: What h11 and proxies take: visible ASCII, and spaces inside.
VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")


@pytest.mark.parametrize(
    "text", ["", " ", " a ", "a\tb\n", "\x7f", "\x00", "é\ud83d", "x" * 1999 + " y", "\u2028", '"\\', "a " * 9999]
)
def test_every_text_becomes_a_value_that_servers_take(text: str) -> None:
    value = header_value(text)
    assert VALUE.fullmatch(value), value
    assert len(value) <= 2000
