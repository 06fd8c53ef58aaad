"""Truncation before tokenizing: the kept tokens are the whole text's, at the cost of the kept part."""

from __future__ import annotations

import random
import re

import pytest

from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import load_template
from rerank.prompting.truncate import SLACK_TOKENS, beginning, first_tokens, passage_limit
from rerank.types import Passage, Query, Window
from tests.small_tokenizers import FAMILIES

LIMIT = 20
NAMES = ("A", "B", "C")


def count_words(text: str) -> int:
    return len(text.split())


def test_only_the_beginning_of_a_long_text_is_counted() -> None:
    counted = list[int]()

    def count(text: str) -> int:
        counted.append(len(text))
        return count_words(text)

    start = beginning("word " * 40_000, LIMIT, count)
    assert sum(counted) < 5000
    assert len(start) < 2000


@pytest.mark.parametrize(("tokens", "kept"), [(1, "on"), (2, "on the"), (3, "on the moon"), (4, "on the moon")])
def test_text_ends_with_its_last_token_that_is_kept(tokens: int, kept: str) -> None:
    def token_ends(text: str) -> list[int]:
        return [match.end() for match in re.finditer(r"\S+", text)]

    assert first_tokens("on the moon", tokens, token_ends) == kept


def test_limit_of_passages_is_the_largest_with_which_all_fit() -> None:
    draw = random.Random(0)
    for _ in range(300):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 8))]
        room = draw.randint(12 * len(lengths), 50 * len(lengths))

        def taken(limit: int) -> int:
            return sum(min(length, limit) + SLACK_TOKENS for length in lengths)  # noqa: B023

        if taken(60) <= room:
            continue
        found = passage_limit(lengths, room, 1000)
        assert taken(found) <= room < taken(found + 1)


TEXTS = {
    "words": lambda draw: " ".join(draw.choices(["water", "of", "Zürich", "x" * 30, "1234", "北京", "."], k=2000)),
    "markup": lambda draw: " ".join(draw.choices(["[A]", "<|user|>", "</s>", "[INST]", "Query:", "[ 12 ]"], k=2000)),
    "white space": lambda draw: "".join(draw.choices([" ", "\n", "\t", "a", " b "], k=9000)),
    "one long word": lambda draw: "".join(draw.choices("abcdef", k=9000)),
    "one letter": lambda draw: "a" * 9000,
    "symbols": lambda draw: "".join(draw.choices("🙂👩‍👩‍👧é́-_=—…", k=5000)),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("tokenizer", FAMILIES)
@pytest.mark.parametrize("passage_tokens", [10, 0])
def test_prompt_is_that_of_the_whole_texts(
    kind: str, tokenizer: str, passage_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    passages = [Passage(str(number), TEXTS[kind](draw)[: draw.randrange(9000)]) for number in range(3)]
    renderer = ListwiseRenderer(load_template("first"), FAMILIES[tokenizer], 400, 1, passage_tokens)

    def prompt() -> object:
        prepared = renderer.prepare(Query("which"), passages)
        return renderer.prompt(Window(prepared.query, prepared.passages), NAMES)

    with monkeypatch.context() as patch:
        patch.setattr("rerank.prompting.listwise.beginning", lambda text, tokens, count: text)
        expected = prompt()
    assert prompt() == expected
