"""The HTTP requests that the documentation shows are answered."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest

from rerank.models.encoder import Encoder
from tests.fakes import NumberRanker
from tests.http_client import http_service
from tests.test_doc_commands import ALL_COMMANDS

SHOWN = [words for _, words in ALL_COMMANDS if words[0] == "curl" and "-d" in words]


@pytest.mark.parametrize("words", SHOWN)
def test_shown_request_is_answered(encoder: Encoder, words: list[str]) -> None:
    (url,) = [word for word in words if word.startswith("http://127.0.0.1:8080/")]
    body = words[words.index("-d") + 1]
    assert words[words.index("-H") + 1] == "content-type: application/json"
    with http_service(encoder, {"pe-rank": NumberRanker()}) as (_, client):
        reply = client.post(urlsplit(url).path, json.loads(body))
    assert reply.status == 200, reply.body
    assert reply.json["results"]


def test_documentation_shows_a_request() -> None:
    assert SHOWN
