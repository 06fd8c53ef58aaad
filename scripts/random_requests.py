"""Requests of random words, the same for the same seed."""

from __future__ import annotations

import random
from typing import Any

from rerank.v1 import rerank_pb2 as pb

_WORDS = "water history of the engine a river which bird turns north stone in 9"


def words(draw: random.Random, characters: int) -> str:
    """Random English words, of exactly this many characters."""
    text = ""
    while len(text) < characters:
        text += " ".join(draw.choices(_WORDS.split(), k=min(4000, characters // 4 + 1))) + " "
    return text[:characters]


def random_request(draw: random.Random, model: str, passages: int, characters: int, **fields: Any) -> pb.RerankRequest:
    """A request with random passages of `characters` each; `fields` are further ones of the message."""
    candidates = [pb.Candidate(doc_id=f"d{number}", text=words(draw, characters)) for number in range(passages)]
    return pb.RerankRequest(query=words(draw, 30), candidates=candidates, model=model, **fields)
