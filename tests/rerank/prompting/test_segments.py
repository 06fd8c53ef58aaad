"""A prompt assembled from segments has the token ids of the same prompt tokenised as a whole."""

from __future__ import annotations

import string
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.segments import PassageContext, SegmentTokenizer
from rerank.prompting.templates import Template, load_template
from rerank.types import Passage, Prepared, Query, Window
from tests.small_tokenizers import FAMILIES

NAMES = string.ascii_lowercase
AWKWARD = [
    "plain words",
    "",
    " begins and ends with spaces ",
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
    """A tokenizer without word boundaries: its tokens span line ends and brackets, as in "]\\n[b] the"."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    text = "".join(f"[{name}] the passage says (this).\n" for name in NAMES) + string.printable
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(special_tokens=["?"], vocab_size=200, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


TOKENIZERS = FAMILIES | {"greedy": greedy()}
TEMPLATES = {
    "first": load_template("first"),
    "tight": Template("{num}:{query}", "{candidate}", "{query}", sha256=""),
    "numbered": Template("{query}\n", "{rank} {candidate}\n\n", "\n\n\nAnswer:\n", sha256=""),
    "conversation": Template(
        "{num}: {query}", "[{rank}] {candidate}", "{query}?", "", "", "go on", "I have read [{rank}]."
    ),
    "in quotes": Template('"{query}"', ' <p>{rank}: "{candidate}"</p>', "</s> {query}", sha256=""),
}
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
each_template = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)


def unprepared(texts: list[str], query: str = "which, then?") -> Prepared:
    return Prepared(Query(query), tuple(Passage(f"d{i}", text) for i, text in enumerate(texts)))


def tokenized_whole(renderer: ListwiseRenderer, window: Window) -> list[int]:
    texts = [passage.text for passage in window.passages]
    return renderer.tokenize(renderer.render(window.query, NAMES[: len(texts)], texts))


@each_tokenizer
@each_template
def test_prompt_of_awkward_texts_is_that_tokenised_whole(
    tokenizer: PreTrainedTokenizerBase, template: Template
) -> None:
    renderer = ListwiseRenderer(template, tokenizer, 100_000, answer_tokens=1)
    raw = unprepared(AWKWARD)
    for request in (raw, renderer.prepare(raw.query, raw.passages)):
        for n in (0, 1, 2, 5, len(AWKWARD)):
            for start in range(0, len(AWKWARD) - n + 1, max(1, n)):
                window = Window(request.query, request.passages[start : start + n])
                assert renderer.prompt(window, NAMES).token_ids == tokenized_whole(renderer, window)


#: One renderer per tokenizer for all examples of hypothesis.
RENDERERS = {
    name: ListwiseRenderer(load_template("first"), tokenizer, 100_000, answer_tokens=1)
    for name, tokenizer in TOKENIZERS.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RENDERERS)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(max_size=8), min_size=1, max_size=5), query=st.text(max_size=8))
def test_prompt_of_any_text_is_that_tokenised_whole(name: str, texts: list[str], query: str) -> None:
    renderer = RENDERERS[name]
    prepared = renderer.prepare(Query(query), unprepared(texts).passages)
    window = Window(prepared.query, prepared.passages)
    assert renderer.prompt(window, NAMES).token_ids == tokenized_whole(renderer, window)


@pytest.mark.parametrize("tokenizer", FAMILIES.values(), ids=FAMILIES)
def test_prepared_passages_are_not_tokenised_again(tokenizer: PreTrainedTokenizerBase) -> None:
    """In windows of any order, except the last passage of a window, which different white space follows."""
    renderer = ListwiseRenderer(load_template("first"), tokenizer, 100_000, answer_tokens=1)
    texts = [f"passage {i} says." for i in range(10)]
    prepared = renderer.prepare(Query("query"), unprepared(texts).passages)
    assert all(passage.token_ids for passage in prepared.passages)
    renderer.prompt(Window(prepared.query, prepared.passages), NAMES)
    tokenised: list[str] = []
    encode = SegmentTokenizer._encode
    with patch.object(SegmentTokenizer, "_encode", lambda self, texts: tokenised.extend(texts) or encode(self, texts)):
        for passages in (prepared.passages[::-1], prepared.passages[3:] + prepared.passages[:3]):
            renderer.prompt(Window(prepared.query, passages), NAMES)
    assert [i for i in range(10) if any(texts[i] in text for text in tokenised)] == [0, 2]


def test_text_whose_tokens_span_a_boundary_has_no_token_ids() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "[": 3, "b[": 4}, [("a", "b"), ("b", "[")]))
    segments = SegmentTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    context = PassageContext(left="[", space_before="", space_after="", right="[")
    assert segments.tokenize_passages(["a", "ab", "b", ""], context) == [(0,), (2,), None, ()]
