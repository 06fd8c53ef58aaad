"""What docs/integrations.md says beside its commands and snippets: settings of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.doc_pages import blocks
from tests.fakes import NumberRanker
from tests.http_client import http_service

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"


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
