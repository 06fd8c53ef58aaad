"""Lists as clients with other data send them: `default_table --variant NAME` tries the weak spots of a model."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rerank.rankers.lexical import bundled_word_table
from rerank.types import Passage, Query
from rerank.util.words import STOP_WORDS, stem, words

#: Changes the query that is sent and searched with.
Ask: TypeAlias = Callable[[Query], Query]
#: Changes the query and the passages of a list after it was found.
Send: TypeAlias = Callable[[Query, Sequence[Passage]], tuple[Query, Sequence[Passage]]]

_LATIN, _CYRILLIC = string.ascii_lowercase, "абцдефгхижклмнопщрстувшчйз"
_TO_CYRILLIC = str.maketrans(_LATIN + _LATIN.upper(), _CYRILLIC + _CYRILLIC.upper())


def as_it_is(query: Query, passages: Sequence[Passage]) -> tuple[Query, Sequence[Passage]]:
    return query, passages


def without_scores(query: Query, passages: Sequence[Passage]) -> tuple[Query, Sequence[Passage]]:
    return query, [replace(passage, score=None) for passage in passages]


def with_shuffled_scores(query: Query, passages: Sequence[Passage]) -> tuple[Query, Sequence[Passage]]:
    """Scores without a meaning: each passage gets another one's. The order of the passages stays."""
    scores = [passage.score for passage in passages]
    random.Random(query.query_id).shuffle(scores)
    return query, [replace(passage, score=score) for passage, score in zip(passages, scores, strict=True)]


def _with_texts(change: Callable[[str], str]) -> Send:
    def changed(query: Query, passages: Sequence[Passage]) -> tuple[Query, Sequence[Passage]]:
        texts = [replace(passage, text=change(passage.text), title=change(passage.title)) for passage in passages]
        return replace(query, text=change(query.text)), texts

    return changed


def in_cyrillic(text: str) -> str:
    return text.translate(_TO_CYRILLIC)


def backwards(text: str) -> str:
    """Every word from its last letter to its first."""
    return re.sub(r"[A-Za-z]+", lambda word: word[0][::-1], text)


def rarest_word(query: Query) -> Query:
    """The rarest word of a query by the bundled table; a query of stop words stays as it is."""
    found = [word for word in words(query.text) if word not in STOP_WORDS and word.isalpha()]
    return replace(query, text=max(found, key=lambda word: bundled_word_table().idf(stem(word)), default=query.text))


@dataclass(frozen=True)
class Variant:
    """Changes to the queries and lists of a collection, as a client with other data would send them."""

    ask: Ask = lambda query: query
    send: Send = as_it_is


#: The name of the variant that changes nothing.
AS_IT_IS = "as-it-is"
VARIANTS: Mapping[str, Variant] = {
    AS_IT_IS: Variant(),
    "no-scores": Variant(send=without_scores),
    "shuffled-scores": Variant(send=with_shuffled_scores),
    "cyrillic": Variant(send=_with_texts(in_cyrillic)),
    "backwards": Variant(send=_with_texts(backwards)),
    "one-word": Variant(ask=rarest_word),
}
