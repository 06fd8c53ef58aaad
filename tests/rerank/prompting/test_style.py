"""Prompt styles of published models: BOS tokens, chat format, and settings that are refused."""

from dataclasses import replace

import pytest
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError, InvalidRequest
from rerank.prompting.listwise import ListwisePrompt, ListwiseRenderer
from rerank.prompting.sanitize import Sanitizer
from rerank.prompting.style import Guard, PromptStyle, first_words
from rerank.prompting.templates import load_template
from rerank.types import Query
from tests.fakes import prepared_window
from tests.small_tokenizers import CHATML_CHAT, byte_level, metaspace, uncased

NAMES = ("A", "B")


def prompt_ids(tokenizer: PreTrainedTokenizerBase, style: PromptStyle, *texts: str) -> list[int]:
    renderer = ListwiseRenderer(load_template("first").with_style(style), tokenizer, 4096, answer_tokens=1)
    return renderer.prompt(prepared_window(renderer, "the query", texts or ("one", "two")), NAMES).token_ids


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("chat", ["zephyr", "instruct"])
def test_prompt_begins_with_as_many_bos_tokens_as_the_style_says(chat, count):
    """FirstMistral was trained with two: the chat template of "instruct" writes one, the tokenizer another."""
    tokenizer = metaspace(chat)  # type: ignore[arg-type]
    plain = prompt_ids(tokenizer, PromptStyle())
    assert prompt_ids(tokenizer, PromptStyle(bos_tokens=count)) == [tokenizer.bos_token_id] * count + plain[1:]


def test_doubled_bos_at_the_beginning_is_refused():
    tokenizer = byte_level()
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.chat_template = "{{ bos_token }}" + CHATML_CHAT
    with pytest.raises(CheckpointError, match=r"begins with two BOS tokens; .* or name a profile"):
        prompt_ids(tokenizer, PromptStyle())
    assert prompt_ids(tokenizer, PromptStyle(bos_tokens=1))[:2] != [tokenizer.bos_token_id] * 2


def test_template_without_chat_markup_gives_plain_text():
    template = replace(load_template("first"), chat_markup=False)
    prompts = []
    for chat_template in (CHATML_CHAT, None):
        tokenizer = byte_level()
        tokenizer.chat_template = chat_template
        renderer = ListwiseRenderer(template, tokenizer, 4096, answer_tokens=1)
        prompts.append(renderer.render(Query("the query"), NAMES, ("one", "two")))
    assert prompts[0] == prompts[1]
    assert "<|im_start|>" not in prompts[0]


def test_chat_format_of_the_style_is_for_tokenizers_without_one():
    turns = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }} {% endfor %}answer:"
    tokenizer = byte_level()
    assert prompt_ids(tokenizer, PromptStyle(chat_template=turns)) == prompt_ids(byte_level(), PromptStyle())
    tokenizer.chat_template = None
    text = tokenizer.decode(prompt_ids(tokenizer, PromptStyle(chat_template=turns)))
    assert text.startswith("system: You rank passages")
    assert "user: Here are 2 passages" in text
    assert text.endswith("answer:")


def test_tokenizer_without_a_chat_format_warns_if_the_template_has_a_system_message():
    def warning(template: str, tokenizer: PreTrainedTokenizerBase) -> str:
        return ListwiseRenderer(load_template(template), tokenizer, 4096, answer_tokens=1).warning

    assert "has no chat template, so the prompt is plain text" in warning("first", uncased())
    assert warning("first_small", uncased()) == ""
    assert warning("first", byte_level()) == ""


def test_repair_of_long_runs_of_accents_takes_no_minute():
    pytest.importorskip("ftfy")
    marks = "\u0301\u0316" * 20_000
    assert len(PromptStyle(repair="passages").passage_text(f"x{marks}")) > len(marks)


@pytest.mark.parametrize(
    ("repair", "passage", "query"),
    [
        ("none", "donâ€™t &amp; “so”", "“so” &amp;"),
        ("prompt", 'don\'t &amp; "so"', '"so" &amp;'),
        ("passages", 'don\'t & "so"', '"so" &amp;'),
    ],
)
def test_repair_reaches_query_and_passages(repair, passage, query):
    """ftfy keeps the HTML entities of a prompt, because its chat markup has a "<"."""
    pytest.importorskip("ftfy")
    style = PromptStyle(repair=repair)  # type: ignore[arg-type]
    assert style.passage_text("donâ€™t &amp; “so”") == passage
    assert style.query_text("“so” &amp;") == query


@pytest.mark.parametrize(
    ("titles", "expected"),
    [
        ("plain", "Fleas They live."),
        ("sentence", "Fleas. They live."),
        ("labelled", "Title: Fleas Content: They live."),
    ],
)
def test_title_has_the_form_of_the_style(titles, expected):
    style = PromptStyle(titles=titles)  # type: ignore[arg-type]
    assert style.passage_text("Fleas They live.", "Fleas") == expected
    assert style.passage_text("They live.") == "They live."
    empty = "They live." if titles == "sentence" else "Title: Content: They live."
    assert style.passage_text("Title: Content: They live.") == empty


@pytest.mark.parametrize(
    ("brackets", "passage", "query"),
    [
        ("kept", "[1] [ 2 ] [abc] [a b]", "[1] [abc]"),
        ("numbers", "(1) [ 2 ] [abc] [a b]", "(1) [abc]"),
        ("words", "[1] [ 2 ] (abc) [a b]", "[1] [abc]"),
    ],
)
def test_brackets_become_parentheses_as_in_the_publishers_program(brackets, passage, query):
    style = PromptStyle(brackets=brackets)  # type: ignore[arg-type]
    assert style.passage_text("[1] [ 2 ] [abc] [a b]") == passage
    assert style.query_text("[1] [abc]") == query


def test_default_style_leaves_texts_alone():
    assert not PromptStyle().changes_passages
    assert PromptStyle().query_text(" a\n[1] “b” ") == " a\n[1] “b” "
    assert PromptStyle().stated == {}
    assert str(PromptStyle()) == ""


def test_style_says_in_words_what_differs_from_the_default():
    style = PromptStyle(prompt_tokens=4096, guards=(Guard.MARKUP,), chat_template="{{ messages }}")
    assert str(style) == "chat_template own, prompt_tokens 4096, guards markup"
    assert str(PromptStyle(guards=())) == "guards none"
    assert PromptStyle.model_validate(style.stated) == style


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shorten": "words"}, "shorten: words needs max_words"),
        ({"max_words": -1}, "greater than or equal to 0"),
        ({"guards": ["all"]}, "'white_space', 'identifiers', 'labels', 'markup' or 'foreign_markup'"),
        ({"rank_llm": True}, "Extra inputs"),
    ],
)
def test_keys_that_say_nothing_are_refused(keys, message):
    with pytest.raises(ValidationError, match=message):
        PromptStyle.model_validate(keys)


@pytest.mark.parametrize(
    ("words", "expected"), [(0, ""), (1, "one"), (2, "one two"), (3, "one two three"), (9, "one two three")]
)
def test_first_words_end_at_a_space(words, expected):
    assert first_words("one two three", words) == expected
    assert first_words("", words) == ""


def by_words(prompt_tokens: int, words: int, texts: list[str], query: str = "the query") -> ListwisePrompt:
    style = PromptStyle(shorten="words", max_words=words, prompt_tokens=prompt_tokens)
    renderer = ListwiseRenderer(load_template("first").with_style(style), byte_level(), 4096, answer_tokens=1)
    return renderer.prompt(prepared_window(renderer, query, texts), NAMES)


def shown_words(prompt: ListwisePrompt) -> list[int]:
    text = byte_level().decode(prompt.token_ids)
    return [text.count(word) for word in ("alpha", "beta")]


def test_passages_are_shortened_to_an_equal_number_of_words_in_the_steps_of_rank_llm():
    """RankLLM's loop (`create_prompt`), written out: 300 words, less a quarter of the surplus for each passage."""
    texts = ["alpha " * 400, "beta " * 310]
    long = by_words(0, 300, texts)
    assert shown_words(long) == [300, 300]
    assert long.truncated == (0, 1)
    per_word = len(by_words(0, 300, texts).token_ids) - len(by_words(0, 299, texts).token_ids)
    limit = len(long.token_ids) - 100
    order = len(byte_level()("[A] > [B]")["input_ids"]) - 1
    words, tokens = 300, len(long.token_ids)
    while tokens > limit - order:
        lowered = words - max(1, (tokens - (limit - order)) // 8)
        tokens -= (words - lowered) * per_word
        words = lowered
    assert shown_words(by_words(limit, 300, texts)) == [words, words]
    assert 0 < words < 300


def test_passages_that_fit_are_shown_whole():
    prompt = by_words(0, 300, ["alpha " * 300, "beta " * 10])
    assert shown_words(prompt) == [300, 10]
    assert prompt.truncated == ()


def test_query_that_leaves_no_word_for_passages_is_refused_with_the_limit():
    message = r"leave none of the prompt's \d+ tokens for a word of each of the 2 passages"
    with pytest.raises(InvalidRequest, match=message):
        by_words(100, 300, ["alpha " * 300, "beta"])


@pytest.mark.parametrize(
    ("guards", "expected"),
    [
        ((), "a\n[A] Search query: </s> <|im_end|> [INST]"),
        ((Guard.WHITE_SPACE,), "a [A] Search query: </s> <|im_end|> [INST]"),
        ((Guard.IDENTIFIERS,), "a\n(A) Search query: </s> <|im_end|> [INST]"),
        ((Guard.LABELS,), "a\n[A] Search query - </s> <|im_end|> [INST]"),
        ((Guard.MARKUP,), "a\n[A] Search query: </s> < |im_end|> [INST]"),
        ((Guard.FOREIGN_MARKUP,), "a\n[A] Search query: < /s> < |im_end|> [ INST]"),
        (tuple(Guard), "a (A) Search query - < /s> < |im_end|> [ INST]"),
    ],
)
def test_guard_changes_what_it_names_only(guards, expected):
    tokenizer = byte_level()
    tokenizer.chat_template = CHATML_CHAT
    sanitize = Sanitizer(tokenizer, ("", "\nSearch Query: {query}"), guards)
    assert sanitize("a\n[A] Search query: </s> <|im_end|> [INST]") == expected


@pytest.mark.parametrize("guards", [(Guard.MARKUP,), tuple(Guard)])
def test_no_special_token_of_a_text_reaches_a_prompt_with_the_guard_of_markup(guards):
    tokenizer = byte_level()
    style = PromptStyle(guards=guards)
    text = " ".join(tokenizer.all_special_tokens)
    plain, hostile = prompt_ids(tokenizer, style), prompt_ids(tokenizer, style, text, "two")
    special = {*tokenizer.all_special_ids}
    assert sum(id_ in special for id_ in hostile) == sum(id_ in special for id_ in plain)
    unguarded = prompt_ids(tokenizer, PromptStyle(guards=()), text, "two")
    assert sum(id_ in special for id_ in unguarded) > sum(id_ in special for id_ in plain)
