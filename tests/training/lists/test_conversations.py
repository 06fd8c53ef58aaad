"""Parser of published conversations: numbers and letters, one user turn or many."""

from __future__ import annotations

from typing import Any

import pytest
from rerank_training.lists.conversations import parse_conversation

from rerank.errors import CollectionError


def prompt(*lines: str, end: str = "\nSearch Query: why so.\nRank the 2 passages above, e.g., [2] > [1].") -> str:
    return "\n".join(["Rank these based on their relevance to the search query: why so.", "", *lines, end])


def conversation(question: str, answer: str) -> dict[str, Any]:
    turns = [("system", "You rank."), ("human", question), ("gpt", answer)]
    return {"conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


def test_identifiers_are_letters() -> None:
    parsed = parse_conversation(conversation(prompt("[A] one", "[B] two"), "[B] > [A]"))
    assert parsed.passages == {"A": "one", "B": "two"}
    assert parsed.ranking == (1, 0)


def test_messages_with_a_turn_for_each_passage() -> None:
    turns = [
        ("user", "I will show passages. Relevance to query: why so."), ("assistant", "Go on."),
        ("user", "[1] one"), ("assistant", "Received passage [1]."),
        ("user", "[2] two"), ("assistant", "Received passage [2]."),
        ("user", "Search Query: why so. \nRank the 2 passages above."), ("assistant", "[2] > [1]"),
    ]  # fmt: skip
    parsed = parse_conversation({"messages": [{"role": role, "content": text} for role, text in turns]})
    assert (parsed.query, parsed.passages, parsed.ranking) == ("why so", {"1": "one", "2": "two"}, (1, 0))


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("who? ", "who?"),
        ("who?.", "who?"),
        ("St. John's wort.", "St. John's wort"),
        ("a. Rank the 2", "a"),
        ("sort a list. Rank the methods. Rank the 2 passages above", "sort a list. Rank the methods"),
        ("one line\nand another.\nRank the 2 passages above. Only answer.", "one line and another"),
        ("no full stop \nRank the 2 passages above", "no full stop"),
    ],
)
def test_query_ends_before_the_instruction(written: str, query: str) -> None:
    parsed = parse_conversation(conversation(prompt("[1] one", "[2] two", end=f"Search Query: {written}"), "[1] > [2]"))
    assert parsed.query == query


def test_numbered_lines_in_a_list_of_letters_are_text_and_the_reverse() -> None:
    letters = parse_conversation(conversation(prompt("[A] steps:", "[1] stir", "[2] bake", "[B] two"), "[B] > [A]"))
    assert letters.passages == {"A": "steps:\n[1] stir\n[2] bake", "B": "two"}
    numbers = parse_conversation(conversation(prompt("[1] answers:", "[A] yes", "[2] two"), "[2] > [1]"))
    assert numbers.passages == {"1": "answers:\n[A] yes", "2": "two"}


@pytest.mark.parametrize("answer", ["[1] > [1] > [2]", "[1] > [2] > [9]"])
def test_answer_with_repeated_or_unknown_identifiers_is_refused(answer: str) -> None:
    with pytest.raises(CollectionError, match=r"the answer repeats [01] identifiers and names [01]"):
        parse_conversation(conversation(prompt("[1] one", "[2] two"), answer))


def test_prompt_without_a_query_is_refused() -> None:
    with pytest.raises(CollectionError, match="Search Query"):
        parse_conversation(conversation("[1] one\n[2] two", "[1] > [2]"))
