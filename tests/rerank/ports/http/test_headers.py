"""Headers of answers: every text in them is a value that servers and proxies take."""

from __future__ import annotations

import re

import pytest

from rerank.ports.http.headers import header_value, warnings_header
from tests.http_client import HttpClient

#: What h11 and proxies take: visible ASCII, and spaces inside.
VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")


@pytest.mark.parametrize(
    "text", ["", " ", " a ", "a\tb\n", "\x7f", "\x00", "é\ud83d", "x" * 1999 + " y", "\u2028", '"\\', "a " * 9999]
)
def test_every_text_becomes_a_value_that_servers_take(text: str) -> None:
    value = header_value(text)
    assert VALUE.fullmatch(value), value
    assert len(value) <= 2000


def test_warnings_that_do_not_fit_are_counted() -> None:
    told = warnings_header([f"warning {number}" for number in range(1000)])["x-rerank-warnings"]
    shown = told.count("; ")
    assert told.endswith(f"; and {1000 - shown} more")
    assert len(told) < 2000
    assert warnings_header([]) == {}
    assert len(header_value(warnings_header(["x" * 5000])["x-rerank-warnings"])) == 2000


@pytest.mark.parametrize("documents", range(55, 95, 3))
@pytest.mark.parametrize("option", [{"near_duplicates": "drop"}, {"diversity": 0.5}])
def test_request_with_many_warnings_is_answered(http: HttpClient, option: dict[str, object], documents: int) -> None:
    body = {"query": "q", "documents": ["the same text, relevance 1"] * documents, "model": "number"} | option
    assert http.post("/v2/rerank", body).status == 200


def test_doc_id_that_ends_in_a_space_is_answered(http: HttpClient) -> None:
    candidates = [{"doc_id": f"{place} ", "text": "the same text, relevance 1"} for place in range(3)]
    reply = http.post("/rerank", {"query": "q", "candidates": candidates, "near_duplicates": "drop"})
    assert reply.status == 200
    assert reply.headers["x-rerank-warnings"].endswith("was dropped as a near duplicate of 0")
