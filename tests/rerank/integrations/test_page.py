"""What docs/integrations.md says beside its commands and snippets: settings of other programs, and missing extras."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rerank import ConfigError, ServiceConfig
from rerank.config.http import HttpConfig
from rerank.service.startup import check_before_loading
from tests.doc_pages import blocks
from tests.fakes import NumberRanker
from tests.http_client import http_service
from tests.test_doc_commands import check_command

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"


def test_command_in_the_settings_of_mcp_clients_exists() -> None:
    (settings,) = blocks(PAGE, "json")
    for server in json.loads(settings)["mcpServers"].values():
        check_command([server["command"], *server["args"]])


def test_settings_of_open_webui_name_an_address_that_answers_its_requests(encoder: Encoder) -> None:
    (block,) = blocks(PAGE, "ini")
    settings = dict(line.split("=", 1) for line in block.splitlines())
    path = settings["RAG_EXTERNAL_RERANKER_URL"].removeprefix("http://127.0.0.1:8081")
    documents = ["relevance 1", "relevance 3", "relevance 2"]
    with http_service(encoder, {settings["RAG_RERANKING_MODEL"]: NumberRanker()}) as (_, client):
        body = {"model": settings["RAG_RERANKING_MODEL"], "query": "q", "documents": documents, "top_n": 3}
        reply = client.post(path, body, authorization=f"Bearer {settings['RAG_EXTERNAL_RERANKER_API_KEY']}")
    assert reply.status == 200, reply.json
    scores = {result["index"]: result["relevance_score"] for result in reply.json["results"]}
    assert sorted(scores, key=lambda place: -scores[place]) == [1, 2, 0]


def test_requests_to_search_engines_are_json() -> None:
    requests = [
        request
        for block in blocks(PAGE, "text")
        for request in re.split(r"^(?:PUT|POST) .*$", block, flags=re.MULTILINE)[1:]
    ]
    assert len(requests) >= 2  # Elasticsearch's endpoint and search
    for request in requests:
        assert json.loads(request)


def test_missing_pyterrier_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyterrier", None)
    monkeypatch.delitem(sys.modules, "rerank.integrations.pyterrier", raising=False)
    with pytest.raises(ConfigError, match=r"needs pyterrier, which is not installed; install .*\[pyterrier\]"):
        importlib.import_module("rerank.integrations.pyterrier")


def test_missing_mcp_is_an_error_before_the_service_loads_models(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServiceConfig(listen="127.0.0.1:0", http=HttpConfig(listen="127.0.0.1:0", mcp=True))
    monkeypatch.setattr("rerank.service.startup.find_spec", lambda name: None if name == "mcp" else name)
    with pytest.raises(ConfigError, match=r"needs mcp, which is not installed; install rerank-listwise\[mcp\]"):
        check_before_loading(config)
