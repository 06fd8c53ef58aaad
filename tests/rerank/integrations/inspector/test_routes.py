"""The inspector's routes on the HTTP port of a service."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.collections import pydoc
from rerank.config import ServiceConfig
from rerank.config.http import HttpConfig
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index
from rerank.service.startup import check_before_loading
from tests.fakes import NumberRanker
from tests.http_client import http_service


def test_page_learns_what_the_service_offers(encoder: Encoder, index: Index) -> None:
    http = HttpConfig(listen="127.0.0.1:0", qrels="pydoc")
    with http_service(encoder, {"number": NumberRanker()}, index, http=http) as (_, client):
        assert b"<title>Inspector" in client.get("/").body
        offered = client.get("/inspector/service").json
        assert [model["name"] for model in offered["service"]["models"]] == ["number"]
        assert offered["service"]["index"]["passages"] == "12"
        texts = [query.text for query in pydoc.queries()]
        assert offered["judged_queries"] == texts
        grades = client.get(f"/inspector/judgements?query={quote(texts[0].upper())}").json["grades"]
        assert set(grades.values()) <= {0, 1, 2}
        assert 2 in grades.values()


def test_without_a_key_only_the_page_itself_is_served(encoder: Encoder, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "tester", CallerLimits())
    with http_service(encoder, keys=tmp_path / "keys") as (_, client):
        assert client.get("/").status == 200
        for path in ("/inspector/service", "/inspector/judgements?query=q"):
            assert client.get(path).status == 401
            assert client.send("GET", path, headers={"authorization": f"Bearer {key}"}).status == 200


def test_judgements_that_cannot_be_read_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text("1 0 a 1\n", encoding="utf-8")
    settings = HttpConfig(listen="127.0.0.1:0", qrels=str(tmp_path / "qrels.txt"))
    with pytest.raises(ConfigError, match="there is no such folder"):
        check_before_loading(ServiceConfig(listen="127.0.0.1:0", http=settings))
