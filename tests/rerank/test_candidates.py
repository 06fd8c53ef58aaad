"""The forms in which the clients and the in-process reranker take candidates; anything else raises a TypeError."""

from __future__ import annotations

import asyncio
from typing import Any

from rerank.client.client import rerank_request
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.types import Passage, Query, RankOptions
from tests.serving import reranker_of

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


def test_text_is_left_out_of_a_reference_to_the_index_only() -> None:
    passages = [Passage("a", in_index=True), Passage("b", "text", in_index=True), Passage("c", "")]
    sent = rerank_request("q", passages, {}).candidates
    assert [(message.in_index, message.HasField("text")) for message in sent] == [
        (True, False),
        (True, True),
        (False, True),
    ]
