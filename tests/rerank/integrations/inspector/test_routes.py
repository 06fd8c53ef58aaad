"""The inspector's routes on the HTTP port of a service."""

from __future__ import annotations

from pathlib import Path

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index
from tests.fakes import NumberRanker
from tests.http_client import http_service


def test_page_learns_what_the_service_offers(encoder: Encoder, index: Index) -> None:
    with http_service(encoder, {"number": NumberRanker()}, index) as (_, client):
        assert b"<title>Inspector" in client.get("/").body
        offered = client.get("/inspector/service").json
        assert [model["name"] for model in offered["models"]] == ["number"]
        assert offered["index"]["passages"] == "12"


def test_without_a_key_only_the_page_itself_is_served(encoder: Encoder, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "tester", CallerLimits())
    with http_service(encoder, keys=tmp_path / "keys") as (_, client):
        assert client.get("/").status == 200
        assert client.get("/inspector/service").status == 401
        headers = {"authorization": f"Bearer {key}"}
        assert client.send("GET", "/inspector/service", headers=headers).status == 200
