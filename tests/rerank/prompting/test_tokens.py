"""Prompts of passages that are cut and tokenized once are the prompts of the whole texts."""

import copy
import json
import random
import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rerank.errors import InvalidRequest
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import Template, load_template
from rerank.prompting.tokens import SLACK_TOKENS, PromptTokenizer, beginning, first_tokens, passage_limit
from rerank.types import Window
from tests.fakes import prepared_window
from tests.small_tokenizers import FAMILIES, byte_level_numbers, metaspace, no_single_letters

TOKENIZERS = {**FAMILIES, "no single letters": no_single_letters()}
TEMPLATES = {
    **{name: load_template(name) for name in ("first", "first_smollm2")},
    "nothing between passages": Template("{query}", "{candidate}", "{num}", ""),
    "spaces around passages": Template("{query} ", "[{rank}] {candidate} ", "end", ""),
    "a turn for each passage": Template("on {query}", "[{rank}] {candidate}", "{num}", "", "", "yes", "read [{rank}]"),
}
#: (context_tokens, passage_tokens): passages as they are, the beginning of each, and as much as fits.
LIMITS = [(4096, 0), (4096, 5), (1000, 0)]
#: What begins and ends words, or is read together with its neighbour.
PARTS = [
    *("flea", "A", "O", "x", "s.", "ends", ".", "?!", "'s", "n't", "[", "]", "(1)", "27", "1999", "3.14", "%", ","),
    *("  ", "\n", "\t", "\u00a0", "\u3000", "\u200b", "naïve", "e\u0301", "\u0301", "ﷺ", "ﹰ", "\u00b4", "北京"),
    *("ありがとう", "🦟", "👩‍👩‍👧", "Straße", "ΣΑΣ", "और", "한국어", "</s>", "<|im_end|>", "[A]", "▁", "Ġ", "<0x0A>"),
]
TEXTS = st.lists(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=30).map(" ".join), max_size=5)
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


@cache
def renderer_of(name: str, template: str, context_tokens: int, passage_tokens: int) -> ListwiseRenderer:
    tokenizer = copy.deepcopy(TOKENIZERS[name])  # a template without chat markup changes it
    return ListwiseRenderer(TEMPLATES[template], tokenizer, context_tokens, 1, passage_tokens)


def as_a_whole(renderer: ListwiseRenderer, window: Window, names: str) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptTokenizer, "ids_of_prompt", lambda tokenizer, prompt, *_: tokenizer.ids(prompt))
        return renderer.prompt(window, names).token_ids


@each_tokenizer
@pytest.mark.parametrize("template", TEMPLATES)
@given(limits=st.sampled_from(LIMITS), texts=TEXTS)
def test_prompt_is_that_of_the_whole_text(name, template, limits, texts):
    renderer = renderer_of(name, template, *limits)
    window = prepared_window(renderer, "how long", texts)
    assert renderer.prompt(window, "ABCDE").token_ids == as_a_whole(renderer, window, "ABCDE")


@each_tokenizer
def test_words_within_a_passage_are_tokenized_once(name, monkeypatch):
    renderer = renderer_of(name, "first", 100_000, 0)
    names = "ABCDEFGHIJKLMNOPQRST"
    texts = [f"{' '.join(f'word{place}' for _ in range(40))}." for place in range(20)]
    window = prepared_window(renderer, "how long", texts)
    renderer.prompt(window, names)  # counts the tokens of the rest
    read = list[str]()
    of_texts = PromptTokenizer._ids

    def listen(self: PromptTokenizer, texts: list[str]) -> list[list[int]]:
        read.extend(texts)
        return of_texts(self, texts)

    monkeypatch.setattr(PromptTokenizer, "_ids", listen)
    renderer.prompt(window, names)
    assert "".join(read).count("word") == 2 * 20


def with_words_of_two(join: tuple[str, str]) -> PreTrainedTokenizerBase:
    """A tokenizer that makes one token of a word and the space after it."""
    content = json.loads(metaspace().backend_tokenizer.to_str())
    content["model"]["vocab"]["".join(join)] = len(content["model"]["vocab"])
    content["model"]["merges"].append(list(join))
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)))


def with_normalizer(normalizer: normalizers.Normalizer) -> PreTrainedTokenizerBase:
    tokenizer = byte_level_numbers()
    tokenizer.backend_tokenizer.normalizer = normalizer
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        with_words_of_two(("s", "▁")),
        with_normalizer(normalizers.Replace(", ", ",")),
        with_normalizer(normalizers.Replace(Regex(r"(?<=\d)\s(?=\d)"), "")),
    ],
    ids=["token of a word and a space", "no space after a comma", "no space between digits"],
)
def test_tokenizer_that_reads_across_spaces_reads_prompts_as_a_whole(tokenizer):
    assert not PromptTokenizer(tokenizer).cuts_at_spaces
    renderer = ListwiseRenderer(load_template("first"), tokenizer, 4096, 1)
    window = prepared_window(renderer, "how long", ["fleas lives, 70 000 years s s", "the moons , and the tides"])
    rendered = renderer.render(window.query, "AB", [passage.text for passage in window.passages])
    assert renderer.prompt(window, "AB").token_ids == renderer.tokenize(rendered)


def test_only_the_beginning_of_a_long_text_is_counted():
    counted = list[int]()

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text.split())

    start = beginning("word " * 40_000, 20, count)
    assert sum(counted) < 5000
    assert len(start) < 2000


def test_less_room_than_8_tokens_for_a_passage_is_refused():
    assert passage_limit([100, 100], 2 * (8 + SLACK_TOKENS), 1000) == 8
    with pytest.raises(InvalidRequest, match="leave 7 of the model's 1000 tokens for each of the 2 passages"):
        passage_limit([100, 100], 2 * (7 + SLACK_TOKENS), 1000)


@pytest.mark.parametrize(("tokens", "kept"), [(1, "on"), (2, "on the"), (3, "on the moon"), (4, "on the moon")])
def test_text_ends_with_its_last_token_that_is_kept(tokens, kept):
    def token_ends(text: str) -> list[int]:
        return [match.end() for match in re.finditer(r"\S+", text)]

    assert first_tokens("on the moon", tokens, token_ends) == kept


def test_limit_of_passages_is_the_largest_with_which_all_fit():
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


LONG_TEXTS = {
    "words": lambda draw: " ".join(draw.choices(["water", "of", "Zürich", "x" * 30, "1234", "北京", "."], k=2000)),
    "markup": lambda draw: " ".join(draw.choices(["[A]", "<|user|>", "</s>", "[INST]", "Query:", "[ 12 ]"], k=2000)),
    "white space": lambda draw: "".join(draw.choices([" ", "\n", "\t", "a", " b "], k=9000)),
    "one long word": lambda draw: "".join(draw.choices("abcdef", k=9000)),
    "one letter": lambda draw: "a" * 9000,
    "symbols": lambda draw: "".join(draw.choices("🙂👩‍👩‍👧é́-_=—…", k=5000)),
}


@pytest.mark.parametrize("kind", LONG_TEXTS)
@pytest.mark.parametrize("tokenizer", FAMILIES)
@pytest.mark.parametrize("passage_tokens", [10, 0])
def test_prompt_of_texts_that_are_cut_first_is_that_of_whole_ones(kind, tokenizer, passage_tokens, monkeypatch):
    draw = random.Random(0)
    texts = [LONG_TEXTS[kind](draw)[: draw.randrange(9000)] for _ in range(3)]
    renderer = ListwiseRenderer(load_template("first"), FAMILIES[tokenizer], 400, 1, passage_tokens)

    def prompt() -> object:
        return renderer.prompt(prepared_window(renderer, "which", texts), "ABC")

    with monkeypatch.context() as patch:
        patch.setattr("rerank.prompting.listwise.beginning", lambda text, tokens, count: text)
        expected = prompt()
    assert prompt() == expected
