"""Prompts put together from pieces are the prompts tokenised whole, whatever the passages begin and end with."""

from __future__ import annotations

import string
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.segments import Place, SegmentTokenizer, places_in
from rerank.prompting.templates import Template, load_template
from rerank.types import Passage, Prepared, Query, Window
from tests.small_tokenizers import byte_level, byte_level_numbers, metaspace, uncased

NAMES = string.ascii_lowercase
AWKWARD = [
    "plain words",
    "",
    " begins and ends with blanks ",
    "\tand a tab\n",
    "ends with a stop.",
    "(ends and begins with brackets)",
    "] [",
    "12 345",
    "007",
    "'s and 't",
    "...",
    "“quoted”",
    "é",
    "e\u0301",
    "日本語。",
    "😀",
    "\u200d",
    "a\u00a0b\u00a0",
    "#tag @name",
    "x",
]


def greedy() -> PreTrainedTokenizerBase:
    """Knows no word boundaries: its tokens reach over line ends and brackets, as in "]\\n[b] the"."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    text = "".join(f"[{name}] the passage says (this).\n" for name in NAMES) + string.printable
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(special_tokens=["?"], vocab_size=200, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


SEPARABLE = {
    "metaspace": metaspace(),
    "instruct": metaspace("instruct"),
    "byte-level": byte_level(),
    "byte-level numbers": byte_level_numbers(),
    "uncased": uncased(),
}
TOKENIZERS = SEPARABLE | {"greedy": greedy()}
TEMPLATES = {
    "ours": load_template("first"),
    "tight": Template("{num}:{query}", "{candidate}", "{query}", sha256=""),
    "numbered": Template("{query}\n", "{rank} {candidate}\n\n", "\n\n\nAnswer:\n", sha256=""),
    "in quotes": Template('"{query}"', ' <p>{rank}: "{candidate}"</p>', "</s> {query}", sha256=""),
}
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
each_template = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)


def unprepared(texts: list[str], query: str = "which, then?") -> Prepared:
    return Prepared(Query(query), tuple(Passage(f"d{place}", text) for place, text in enumerate(texts)))


def whole(renderer: ListwiseRenderer, window: Window) -> list[int]:
    texts = [passage.text for passage in window.passages]
    return renderer.token_ids(renderer.text(window.query, NAMES[: len(texts)], texts))


@each_tokenizer
@each_template
@pytest.mark.parametrize("n", [0, 1, 2, 5, len(AWKWARD)])
def test_prompt_is_the_whole_rendering(tokenizer: PreTrainedTokenizerBase, template: Template, n: int) -> None:
    renderer = ListwiseRenderer(template, tokenizer, 100_000, answer_tokens=1)
    raw = unprepared(AWKWARD)
    for request in (raw, renderer.prepared(raw.query, raw.passages)):
        for start in range(0, len(AWKWARD) - n + 1, max(1, n)):
            window = Window(request.query, request.passages[start : start + n])
            assert renderer.prompt(window, NAMES).token_ids == whole(renderer, window)


@each_tokenizer
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(max_size=8), min_size=1, max_size=5), query=st.text(max_size=8))
def test_prompt_of_any_text_is_the_whole_rendering(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], query: str
) -> None:
    renderer = ListwiseRenderer(load_template("first"), tokenizer, 100_000, answer_tokens=1)
    prepared = renderer.prepared(Query(query), unprepared(texts).passages)
    window = Window(prepared.query, prepared.passages)
    assert renderer.prompt(window, NAMES).token_ids == whole(renderer, window)


@pytest.mark.parametrize("tokenizer", SEPARABLE.values(), ids=SEPARABLE)
def test_prepared_passages_are_not_tokenised_again(tokenizer: PreTrainedTokenizerBase) -> None:
    """In windows of any order, but for the one that stands last, whose white space is another."""
    renderer = ListwiseRenderer(load_template("first"), tokenizer, 100_000, answer_tokens=1)
    texts = [f"passage {place} says." for place in range(10)]
    prepared = renderer.prepared(Query("query"), unprepared(texts).passages)
    assert all(passage.token_ids for passage in prepared.passages)
    renderer.prompt(Window(prepared.query, prepared.passages), NAMES)
    seen: list[str] = []
    encoded = SegmentTokenizer._encoded
    with patch.object(SegmentTokenizer, "_encoded", lambda self, texts: seen.extend(texts) or encoded(self, texts)):
        for turned in (prepared.passages[::-1], prepared.passages[3:] + prepared.passages[:3]):
            renderer.prompt(Window(prepared.query, turned), NAMES)
    assert [place for place in range(10) if any(texts[place] in text for text in seen)] == [0, 2]


def test_whole_prompt_is_tokenised_once_for_those_who_ask_twice() -> None:
    renderer = ListwiseRenderer(load_template("first"), TOKENIZERS["greedy"], 100_000, answer_tokens=1)
    prepared = renderer.prepared(Query("query"), unprepared(["the passage says (this)."] * 3).passages)
    window = Window(prepared.query, prepared.passages)
    first = renderer.prompt(window, NAMES).token_ids
    with patch.object(SegmentTokenizer, "ids", side_effect=AssertionError("tokenised again")):
        assert renderer.prompt(window, NAMES).token_ids == first


def test_text_whose_tokens_reach_over_the_seam_has_no_ids_of_its_own() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "[": 3, "b[": 4}, [("a", "b"), ("b", "[")]))
    pieces = SegmentTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    place = Place(left="[", before="", after="", right="[")
    assert pieces.passages(["a", "ab", "b", ""], place) == [(0,), (2,), None, ()]


def test_places_give_white_space_to_the_passages() -> None:
    parts = ["Query: q\n\n[A] ", "\n[B] ", "\n\nThe end of it"]
    assert places_in(parts) == (Place("]", " ", "\n", "[B]"), Place("]", " ", "\n\n", "The end "))
    assert places_in(["all of it"]) == ()
    assert places_in(["head ", " \n", "tail"]) == (Place("d", " ", " \n", ""), Place("", "", "", "tail"))
