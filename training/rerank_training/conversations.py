"""Training lists as conversations: the form in which the sets of RankGPT, RankZephyr and FIRST are published.

    system  …
    user    … passages … search query: QUERY.
            [1] first passage
            [2] second passage

            Search Query: QUERY. Rank …
    model   [2] > [1]

Identifiers are numbers or letters. The texts are those of the three sources' prompts; several user turns (RankGPT gives
each passage in its own) are read as one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_uppercase
from typing import Any

from rerank.errors import CollectionError
from rerank.rankers.generation import parse_permutation

_USER, _MODEL = {"user", "human"}, {"assistant", "gpt"}
#: No published list is longer; FIRST's letters end at Z.
_NUMBERS = [str(number) for number in range(1, 101)]
_AFTER_PASSAGES = re.compile(r"^\s*search query: *(?P<query>.+)$", re.IGNORECASE | re.MULTILINE)
#: What follows the query in the prompts of the field.
_AFTER_QUERY = re.compile(r"\.?\s*$|\.\s*Rank the ")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is said about one list.

    Attributes:
        passages: identifier → text, in the order of the prompt.
        ranking: places in `passages`, best first; it may end early.
    """

    query: str
    passages: dict[str, str]
    ranking: tuple[int, ...]


def parse_conversation(row: Any) -> Conversation:
    """One conversation, as JSON gives it: turns under `conversations` (from, value) or `messages` (role, content).

    Raises:
        CollectionError: there is no query, fewer than two passages, or an answer that repeats one or names others.
        KeyError, TypeError: it is no conversation.
    """
    turns = list(_turns(row))
    asked = "\n".join(text for speaker, text in turns if speaker in _USER)
    answer = next((text for speaker, text in reversed(turns) if speaker in _MODEL), "")
    ends = list(_AFTER_PASSAGES.finditer(asked))
    if not ends:
        raise CollectionError("no line that starts with 'Search Query:' after the passages")
    passages = _passages(asked[: ends[-1].start()])
    query = _AFTER_QUERY.split(ends[-1]["query"], maxsplit=1)[0].strip()
    return Conversation(query, passages, _ranking(answer, list(passages)))


def _turns(row: Any) -> Iterator[tuple[str, str]]:
    for turn in row.get("conversations") or row["messages"]:
        yield (turn["from"], turn["value"]) if "from" in turn else (turn["role"], turn["content"])


def _passages(text: str) -> dict[str, str]:
    """The text between one identifier at the start of a line and the next."""
    starts = _starts(text, _NUMBERS) or _starts(text, list(ascii_uppercase))
    ends = [(name, start, end) for (name, _, start), (_, end, _) in pairwise([*starts, ("", len(text), len(text))])]
    return {name: text[start:end].strip() for name, start, end in ends}


def _starts(text: str, names: list[str]) -> list[tuple[str, int, int]]:
    """(identifier, where its bracket is, where its passage begins), in their own order, each behind the last."""
    found: list[tuple[str, int, int]] = []
    for name in names:
        match = re.compile(rf"^\[{name}\]\s", re.MULTILINE).search(text, found[-1][2] if found else 0)
        if match is None:
            break
        found.append((name, match.start(), match.end()))
    return found


def _ranking(answer: str, names: list[str]) -> tuple[int, ...]:
    parsed = parse_permutation(answer, names)
    if parsed.repeated or parsed.foreign:
        raise CollectionError(
            f"the answer repeats {parsed.repeated} identifiers and names {parsed.foreign} that are no passage's"
        )
    return parsed.permutation[: len(names) - parsed.missing]
