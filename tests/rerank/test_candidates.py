"""The forms in which the clients and the in-process reranker take candidates; anything else raises a TypeError."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rerank.client.client import RerankClient
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.types import Passage, Prepared, Query, RankOptions
from rerank.v1 import rerank_pb2 as pb
from tests.rerank.client.either_client import Client
from tests.serving import Served, reranker_of, serving

FORMS = [
    {"doc_id": "a", "text": "first", "score": 2.5},
    {"_id": 7, "text": "second", "title": None},
    ("c", "third"),
    "fourth",
    Passage("e", "fifth", 0.5),
    Passage("f", "sixth"),
]
EXPECTED = [("a", "first", 2.5), ("7", "second", None), ("c", "third", None), ("3", "fourth", None)]
EXPECTED += [("e", "fifth", 0.5), ("f", "sixth", None)]


def rerank_in_process(encoder: Encoder, candidates: Any) -> list[tuple[str, str, float | None]]:
    async def rank() -> list[Passage]:
        async with reranker_of(encoder, {"identity": IdentityRanker()}) as reranker:
            ranking = await reranker.rerank(Query("q"), candidates, RankOptions())
            return [ranked.passage for ranked in ranking.ranked]

    return [(candidate.doc_id, candidate.text, candidate.score) for candidate in asyncio.run(rank())]


def test_in_process_reranker_takes_every_form(encoder: Encoder) -> None:
    assert rerank_in_process(encoder, FORMS) == EXPECTED


def by_client(kind: Any, service: Served, candidates: Any) -> pb.RerankResponse:
    return Client(kind, service.address).call("rerank", "q", candidates, model="identity", return_passages=True)


class TitleReader(IdentityRanker):
    """Remembers titles and texts of the passages that it is given."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.texts: list[str] = []

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        self.titles += [passage.title for passage in passages]
        self.texts += [passage.text for passage in passages]
        return super().prepare(query, passages)


def test_title_reaches_the_ranker_as_beginning_of_the_text(encoder: Encoder) -> None:
    ranker = TitleReader()
    ranker.info = replace(ranker.info, reads_passages=True)
    candidates = [
        Passage("a", "T one", title="T"),
        Passage("b", "two"),
        Passage("c", "U three", title="U"),
        {"id": "d", "text": "four", "title": "V"},
    ]
    with serving(reranker_of(encoder, {"identity": ranker})) as served:
        by_client(RerankClient, served, candidates)
    assert ranker.titles == ["T", "", "U", "V"]
    assert ranker.texts == ["T one", "two", "U three", "V four"]
