"""The small tokenizers split text as the public families do for which they are substitutes."""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.small_tokenizers import byte_level, byte_level_numbers, metaspace, no_single_letters, uncased

Build = Callable[[], PreTrainedTokenizerFast]

instruct = partial(metaspace, chat="instruct")
no_single_letters_unknown = partial(no_single_letters, others="unknown")

CAPITALS, LETTERS = string.ascii_uppercase, string.ascii_letters
PROSE = (
    "Question 12: how long, in days, do Fleas live?\n\n[A] \"20 days\" (or 365);\n[B] I don't know & won't guess_it!\n"
)
BYTE_LEVEL = pytest.mark.parametrize("build", [byte_level, byte_level_numbers])


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def prompt(tokenizer: PreTrainedTokenizerFast, system: str | None = None) -> str:
    """The rendered chat up to where the answer begins."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "Rank [A] and [B]."})
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


# All families


@pytest.mark.parametrize("build", [metaspace, byte_level, byte_level_numbers, no_single_letters])
def test_text_survives_encoding_and_decoding(build: Build) -> None:
    tokenizer = build()
    for text in (PROSE, "naïve 日本 🦟", "  two  spaces\t\r\n", ""):
        assert tokenizer.decode(ids(tokenizer, text)) == text
        assert tokenizer.unk_token_id not in ids(tokenizer, text)


@pytest.mark.parametrize(
    ("build", "bos", "eos", "pad", "unk"),
    [
        (metaspace, "<s>", "</s>", None, "<unk>"),
        (instruct, "<s>", "</s>", None, "<unk>"),
        (byte_level, None, "<|im_end|>", "<|endoftext|>", None),
        (byte_level_numbers, "<|begin_of_text|>", "<|eot_id|>", None, None),
        (uncased, None, None, "[PAD]", "[UNK]"),
        (no_single_letters, None, "<|im_end|>", None, "<unk>"),
        (no_single_letters_unknown, None, "<|im_end|>", None, "<unk>"),
    ],
)
def test_special_tokens_have_their_names_and_survive_saving(
    build: Build, bos: str | None, eos: str | None, pad: str | None, unk: str | None, tmp_path: Path
) -> None:
    tokenizer = build()
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == (bos, eos, pad, unk)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(PROSE)["input_ids"] == tokenizer(PROSE)["input_ids"]
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.chat_template == tokenizer.chat_template


@pytest.mark.parametrize(
    ("build", "text", "tokens"),
    [
        # A letter that begins a word is another token than a letter after a bracket.
        (metaspace, "A", ["▁A"]),
        (metaspace, " A", ["▁", "▁A"]),
        (metaspace, "x[A", ["▁x", "[", "A"]),
        (byte_level, "A", ["A"]),
        (byte_level, " A", ["ĠA"]),
        # The token of a bracket depends on the text before it.
        (metaspace, "[", ["▁["]),
        (metaspace, " [", ["▁", "▁["]),
        (metaspace, "\n[", ["▁", "<0x0A>", "["]),
        (metaspace, "x[", ["▁x", "["]),
        (metaspace, "][", ["▁", "]["]),
        (byte_level, "\n\n[", ["ĊĊ", "["]),
        (byte_level, "][", ["]", "["]),
        (byte_level, "> [A", [">", "Ġ[", "A"]),
        (byte_level_numbers, "\n\n[", ["ĊĊ", "["]),
        (byte_level_numbers, "][", ["]", "["]),
        # Numbers are split into digits, or into groups of three.
        (metaspace, "[10]", ["▁[", "1", "0", "]"]),
        (byte_level, "[10]", ["[", "1", "0", "]"]),
        (byte_level, " 2345", ["Ġ", "2", "3", "4", "5"]),
        (byte_level_numbers, "1000", ["100", "0"]),
        (byte_level_numbers, "123456", ["123", "456"]),
        (byte_level_numbers, "007", ["007"]),
        (byte_level_numbers, " 12", ["Ġ", "12"]),
        # An uncased tokenizer drops white space.
        (uncased, "[A]", ["[", "a", "]"]),
        (uncased, "][", ["]", "["]),
        (uncased, "\n\n[B", ["[", "b"]),
        (uncased, "Cab 10", ["c", "##a", "##b", "1", "##0"]),
        # Other characters are bytes, and chat markers can be plain text.
        (metaspace, "é\n", ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]),
        (metaspace, "<|user|>", ["▁", "<", "|", *"user", "|", ">"]),
        (instruct, " [/INST]", ["▁", "▁[", "/", "I", "N", "S", "T", "]"]),
    ],
)
def test_text_is_split_into_these_tokens(build: Build, text: str, tokens: list[str]) -> None:
    assert build().tokenize(text) == tokens


# BOS and chat templates


@pytest.mark.parametrize(("build", "written_by_template"), [(metaspace, 0), (instruct, 1), (byte_level_numbers, 1)])
def test_bos_is_added_beside_that_of_the_chat_template(build: Build, written_by_template: int) -> None:
    tokenizer = build()
    assert tokenizer("A")["input_ids"] == [tokenizer.bos_token_id, *ids(tokenizer, "A")]
    assert tokenizer.bos_token_id not in ids(tokenizer, "A")
    rendered = prompt(tokenizer)
    assert ids(tokenizer, rendered).count(tokenizer.bos_token_id) == written_by_template
    assert tokenizer(rendered)["input_ids"].count(tokenizer.bos_token_id) == written_by_template + 1


@pytest.mark.parametrize("build", [byte_level, no_single_letters])
def test_nothing_is_added_without_bos(build: Build) -> None:
    tokenizer = build()
    assert tokenizer("A")["input_ids"] == ids(tokenizer, "A")


@pytest.mark.parametrize(
    ("build", "start", "end"),
    [
        (metaspace, "<|system|>\nBe brief.</s>\n<|user|>\n", "</s>\n<|assistant|>\n"),
        (byte_level, "<|im_start|>system\nBe brief.<|im_end|>\n", "<|im_end|>\n<|im_start|>assistant\n"),
        (
            byte_level_numbers,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>",
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_system_message_is_first_and_the_answer_is_open(build: Build, start: str, end: str) -> None:
    rendered = prompt(build(), system="Be brief.")
    assert rendered.startswith(start)
    assert rendered.endswith("Rank [A] and [B]." + end)


def test_instruct_template_refuses_a_system_message() -> None:
    assert prompt(instruct()) == "<s>[INST] Rank [A] and [B]. [/INST]"
    with pytest.raises(TemplateError, match="roles take turns"):
        prompt(instruct(), system="Be brief.")


@pytest.mark.parametrize(
    ("build", "markers"),
    [
        (metaspace, ["</s>"]),
        (byte_level, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
        (byte_level_numbers, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
        (uncased, ["[SEP]"]),
    ],
)
def test_marker_inside_a_text_becomes_a_special_token(build: Build, markers: list[str]) -> None:
    tokenizer = build()
    for marker in markers:
        marker_id = tokenizer.convert_tokens_to_ids(marker)
        assert marker_id in tokenizer.all_special_ids
        assert ids(tokenizer, f"a passage {marker} with a marker").count(marker_id) == 1


@pytest.mark.parametrize("build", [metaspace, byte_level, byte_level_numbers, no_single_letters])
def test_bracket_extends_the_prompt(build: Build) -> None:
    tokenizer = build()
    rendered = prompt(tokenizer)
    assert ids(tokenizer, rendered + "[") == [*ids(tokenizer, rendered), tokenizer.convert_tokens_to_ids("[")]


def test_bracket_merges_with_the_end_of_an_instruct_prompt() -> None:
    tokenizer = instruct()
    before = tokenizer.tokenize(prompt(tokenizer))
    after = tokenizer.tokenize(prompt(tokenizer) + "[")
    assert (before[:-1], before[-1], after[-1]) == (after[:-1], "]", "][")


# Letters and numbers


def test_metaspace_letter_is_bare_after_a_bracket_only() -> None:
    tokenizer = metaspace()
    for letter in LETTERS:
        assert tokenizer.tokenize(letter) == [f"▁{letter}"]
        for before in ("[", "> [", "\n\n[", "x["):
            assert tokenizer.tokenize(before + letter) == [*tokenizer.tokenize(before), letter]


@BYTE_LEVEL
def test_bracket_and_letter_merge_except_o_and_q(build: Build) -> None:
    tokenizer = build()
    for before in ("", "\n", "\n\n", "x]\n"):
        n = len(tokenizer.tokenize(before))
        for letter in CAPITALS:
            expected = ["[", letter] if letter in "OQ" else [f"[{letter}"]
            assert tokenizer.tokenize(f"{before}[{letter}]")[n:-1] == expected


@BYTE_LEVEL
def test_byte_level_letters_do_not_merge_with_a_space_and_bracket(build: Build) -> None:
    tokenizer = build()
    assert ids(tokenizer, "A") == [32], "the id of GPT-2"
    for letter in LETTERS:
        assert (tokenizer.tokenize(letter), tokenizer.tokenize(f" {letter}")) == ([letter], [f"Ġ{letter}"])
        assert tokenizer.tokenize(f"> [{letter}") == [">", "Ġ[", letter]


def test_numbers_to_999_are_single_tokens_apart_from_brackets() -> None:
    tokenizer = byte_level_numbers()
    for number in range(1000):
        assert tokenizer.tokenize(f"{number}") == [f"{number}"]
        assert tokenizer.tokenize(f"[{number}]") == ["[", f"{number}", "]"]
    assert len({tokenizer.convert_tokens_to_ids(f"{number}") for number in range(1000)}) == 1000


def test_uncased_letters_share_a_token_and_text_is_inside_cls_and_sep() -> None:
    tokenizer = uncased()
    assert tokenizer.chat_template is None
    assert tokenizer.unk_token_id not in ids(tokenizer, PROSE)
    assert tokenizer("A")["input_ids"] == [tokenizer.cls_token_id, *ids(tokenizer, "a"), tokenizer.sep_token_id]
    for capital in CAPITALS:
        assert ids(tokenizer, capital) == ids(tokenizer, capital.lower()) == ids(tokenizer, f" {capital}")
        assert tokenizer.convert_tokens_to_ids(capital) == tokenizer.unk_token_id


@pytest.mark.parametrize("build", [no_single_letters, no_single_letters_unknown])
def test_only_a_to_h_are_single_tokens(build: Build) -> None:
    tokenizer = build()
    for before in ("", "[", " "):
        n = len(ids(tokenizer, before))
        tails = {letter: ids(tokenizer, before + letter)[n:] for letter in LETTERS}
        single = [letter for letter, tail in tails.items() if len(tail) == 1 and tail != [tokenizer.unk_token_id]]
        assert single == list("ABCDEFGH")
    decoded = {tokenizer.decode([token_id]) for token_id in range(len(tokenizer))}
    assert decoded & set(LETTERS) == set("ABCDEFGH"), "no other token decodes to a letter"


def test_other_letters_are_two_distinct_bytes_or_unknown() -> None:
    tokenizer, unknown = no_single_letters(), no_single_letters_unknown()
    others = [tuple(ids(tokenizer, letter)) for letter in LETTERS if letter not in "ABCDEFGH"]
    assert {len(pair) for pair in others} == {2}
    assert len(set(others)) == len(others)
    assert ids(unknown, "[I]")[1:-1] == ids(unknown, "z") == [unknown.unk_token_id]
