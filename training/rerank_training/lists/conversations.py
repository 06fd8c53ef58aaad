"""Parser for training lists that are published as chat conversations, for RankGPT, RankZephyr and FIRST.

    system     …
    user       … passages … search query: QUERY.
               [1] first passage
               [2] second passage

               Search Query: QUERY. Rank …
    assistant  [2] > [1]

Identifiers are numbers or letters. The phrases searched for are in the three published prompts. Several user
turns are read as one text, because RankGPT gives each passage in a separate turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_uppercase
from typing import Any

from rerank.errors import CollectionError
from rerank.rankers.permutations import parse_permutation

_USER, _ASSISTANT = {"user", "human"}, {"assistant", "gpt"}
#: No published list is longer than 100 passages. FIRST's letters end at Z.
_NUMBERS = [str(number) for number in range(1, 101)]
_QUERY_LINE = re.compile(r"^\s*search query: *(?P<query>.+)$", re.IGNORECASE | re.MULTILINE)
#: The text after the query in the published prompts: "Rank the 20 passages above …".
_INSTRUCTION = re.compile(r"\.?\s*\bRank the \d+\b")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Query, passages and ranking of one conversation.

    Attributes:
        passages: identifier → text, in the order of the prompt.
        ranking: positions in `passages`, best first; it may end early.
    """

    query: str
    passages: dict[str, str]
    ranking: tuple[int, ...]


def parse_conversation(row: Any) -> Conversation:
    """Parses a JSON conversation: turns in `conversations` (keys from, value) or `messages` (keys role, content).

    Raises:
        CollectionError: there is no query, or the answer repeats an identifier or names one that has no passage.
        KeyError, TypeError: the row is not a conversation.
    """
    turns = list(_turns(row))
    prompt = "\n".join(text for speaker, text in turns if speaker in _USER)
    answer = next((text for speaker, text in reversed(turns) if speaker in _ASSISTANT), "")
    query_lines = list(_QUERY_LINE.finditer(prompt))
    if not query_lines:
        raise CollectionError("no line that starts with 'Search Query:' after the passages")
    passages = _passages(prompt[: query_lines[-1].start()])
    return Conversation(_query(prompt, query_lines[-1]), passages, _ranking(answer, list(passages)))


def _query(prompt: str, line: re.Match[str]) -> str:
    """The query that a line begins: up to the last instruction, on that line or a later one, else the line."""
    instructions = list(_INSTRUCTION.finditer(prompt, line.start("query")))
    query = prompt[line.start("query") : instructions[-1].start()] if instructions else line["query"].rstrip()
    return " ".join((query if instructions else query.removesuffix(".")).split())


def _turns(row: Any) -> Iterator[tuple[str, str]]:
    """(speaker, text) of each turn."""
    for turn in row.get("conversations") or row["messages"]:
        yield (turn["from"], turn["value"]) if "from" in turn else (turn["role"], turn["content"])


def _passages(text: str) -> dict[str, str]:
    """Identifier → the text between this identifier at the start of a line and the next one."""
    lists = [found for names in (_NUMBERS, list(ascii_uppercase)) if (found := _find_identifiers(text, names))]
    found = min(lists, key=lambda found: found[0][1], default=[])  # a passage may contain a list of the other kind
    end = ("", len(text), len(text))
    return {name: text[start:stop].strip() for (name, _, start), (_, stop, _) in pairwise([*found, end])}


def _find_identifiers(text: str, names: list[str]) -> list[tuple[str, int, int]]:
    """(identifier, start of its bracket, start of its passage), each after the last one, until one is missing."""
    found: list[tuple[str, int, int]] = []
    for name in names:
        match = re.compile(rf"^\[{name}\]\s", re.MULTILINE).search(text, found[-1][2] if found else 0)
        if match is None:
            break
        found.append((name, match.start(), match.end()))
    return found


def _ranking(answer: str, names: list[str]) -> tuple[int, ...]:
    parsed = parse_permutation(answer, names)
    if parsed.repeated or parsed.unknown:
        raise CollectionError(
            f"the answer repeats {parsed.repeated} identifiers and names {parsed.unknown} that no passage has"
        )
    return parsed.permutation[: len(names) - parsed.missing]
