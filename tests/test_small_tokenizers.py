"""The small tokenizers have the traps that they stand for."""

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

CAPITALS = string.ascii_uppercase
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


# what every one of them must do


@pytest.mark.parametrize("build", [metaspace, byte_level, byte_level_numbers, no_single_letters])
@pytest.mark.parametrize("text", [PROSE, "naïve 日本 🦟", "  two  spaces\t\r\n", ""])
def test_text_survives_encoding_and_decoding(build: Build, text: str) -> None:
    tokenizer = build()
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
def test_special_tokens_have_their_names(
    build: Build, bos: str | None, eos: str | None, pad: str | None, unk: str | None
) -> None:
    tokenizer = build()
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == (bos, eos, pad, unk)


@pytest.mark.parametrize(
    "build",
    [metaspace, instruct, byte_level, byte_level_numbers, uncased, no_single_letters, no_single_letters_unknown],
)
def test_saved_tokenizer_reads_back_unchanged(build: Build, tmp_path: Path) -> None:
    tokenizer = build()
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(PROSE)["input_ids"] == tokenizer(PROSE)["input_ids"]
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.chat_template == tokenizer.chat_template


# BOS and chat templates


@pytest.mark.parametrize("build", [metaspace, instruct, byte_level_numbers])
def test_bos_is_added_unless_told_otherwise(build: Build) -> None:
    tokenizer = build()
    assert tokenizer("A")["input_ids"] == [tokenizer.bos_token_id, *ids(tokenizer, "A")]
    assert tokenizer.bos_token_id not in ids(tokenizer, "A")


@pytest.mark.parametrize("build", [byte_level, no_single_letters])
def test_nothing_is_added_without_bos(build: Build) -> None:
    tokenizer = build()
    assert tokenizer("A")["input_ids"] == ids(tokenizer, "A")


@pytest.mark.parametrize(("build", "written_by_template"), [(metaspace, 0), (instruct, 1), (byte_level_numbers, 1)])
def test_bos_is_doubled_when_template_writes_it_too(build: Build, written_by_template: int) -> None:
    tokenizer = build()
    rendered = prompt(tokenizer)
    assert ids(tokenizer, rendered).count(tokenizer.bos_token_id) == written_by_template
    assert tokenizer(rendered)["input_ids"].count(tokenizer.bos_token_id) == written_by_template + 1


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
def test_system_message_comes_first_and_answer_is_open(build: Build, start: str, end: str) -> None:
    rendered = prompt(build(), system="Be brief.")
    assert rendered.startswith(start)
    assert rendered.endswith("Rank [A] and [B]." + end)


def test_instruct_template_refuses_a_system_message() -> None:
    with pytest.raises(TemplateError, match="roles take turns"):
        prompt(instruct(), system="Be brief.")


def test_instruct_prompt_ends_in_plain_text() -> None:
    tokenizer = instruct()
    assert prompt(tokenizer) == "<s>[INST] Rank [A] and [B]. [/INST]"
    assert tokenizer.tokenize(" [/INST]")[1:] == ["▁[", "/", "I", "N", "S", "T", "]"]


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_zephyr_marker_is_plain_text(role: str) -> None:
    tokenizer = metaspace()
    assert tokenizer.tokenize(f"<|{role}|>") == ["▁", "<", "|", *role, "|", ">"]


@pytest.mark.parametrize(
    ("build", "marker"),
    [
        (metaspace, "</s>"),
        (byte_level, "<|im_start|>"),
        (byte_level, "<|im_end|>"),
        (byte_level, "<|endoftext|>"),
        (byte_level_numbers, "<|start_header_id|>"),
        (byte_level_numbers, "<|end_header_id|>"),
        (byte_level_numbers, "<|eot_id|>"),
        (uncased, "[SEP]"),
    ],
)
def test_marker_inside_a_text_becomes_a_special_token(build: Build, marker: str) -> None:
    tokenizer = build()
    marker_id = tokenizer.convert_tokens_to_ids(marker)
    assert marker_id in tokenizer.all_special_ids
    assert ids(tokenizer, f"a passage {marker} with a marker").count(marker_id) == 1


@pytest.mark.parametrize("build", [metaspace, byte_level, byte_level_numbers, no_single_letters])
def test_bracket_extends_the_prompt(build: Build) -> None:
    tokenizer = build()
    rendered = prompt(tokenizer)
    assert ids(tokenizer, rendered + "[") == [*ids(tokenizer, rendered), tokenizer.convert_tokens_to_ids("[")]


def test_bracket_changes_the_end_of_an_instruct_prompt() -> None:
    tokenizer = instruct()
    before = tokenizer.tokenize(prompt(tokenizer))
    after = tokenizer.tokenize(prompt(tokenizer) + "[")
    assert (before[:-1], before[-1], after[-1]) == (after[:-1], "]", "][")


# metaspace


def test_letter_alone_is_word_initial() -> None:
    tokenizer = metaspace()
    for letter in string.ascii_letters:
        assert tokenizer.tokenize(letter) == [f"▁{letter}"]
        assert ids(tokenizer, letter) != [tokenizer.convert_tokens_to_ids(letter)]


def test_letter_after_space_keeps_a_space_apart() -> None:
    assert metaspace().tokenize(" A") == ["▁", "▁A"]


@pytest.mark.parametrize("before", ["[", "> [", "\n\n[", "x["])
def test_letter_after_bracket_is_bare(before: str) -> None:
    tokenizer = metaspace()
    for letter in string.ascii_letters:
        assert tokenizer.tokenize(before + letter) == [*tokenizer.tokenize(before), letter]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [("[", ["▁["]), (" [", ["▁", "▁["]), ("\n[", ["▁", "<0x0A>", "["]), ("x[", ["▁x", "["]), ("][", ["▁", "]["])],
)
def test_bracket_depends_on_what_precedes_it(text: str, pieces: list[str]) -> None:
    assert metaspace().tokenize(text) == pieces


def test_character_outside_the_vocabulary_is_bytes() -> None:
    assert metaspace().tokenize("é\n") == ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]


# byte level


@BYTE_LEVEL
@pytest.mark.parametrize("before", ["", "\n", "\n\n", "x]\n"])
def test_bracket_and_letter_merge_except_o_and_q(build: Build, before: str) -> None:
    tokenizer = build()
    tails = {
        letter: tokenizer.tokenize(f"{before}[{letter}]")[len(tokenizer.tokenize(before)) : -1] for letter in CAPITALS
    }
    assert tails == {letter: ["[", letter] if letter in "OQ" else [f"[{letter}"] for letter in CAPITALS}


@BYTE_LEVEL
def test_bracket_after_space_stays_apart_from_letter(build: Build) -> None:
    tokenizer = build()
    for letter in CAPITALS:
        assert tokenizer.tokenize(f"> [{letter}") == [">", "Ġ[", letter]


@BYTE_LEVEL
def test_letter_alone_is_bare_and_letter_after_space_is_not(build: Build) -> None:
    tokenizer = build()
    for letter in string.ascii_letters:
        assert tokenizer.tokenize(letter) == [letter]
        assert tokenizer.tokenize(f" {letter}") == [f"Ġ{letter}"]


@BYTE_LEVEL
def test_blank_line_is_one_token_apart_from_bracket(build: Build) -> None:
    assert build().tokenize("\n\n[") == ["ĊĊ", "["]


@BYTE_LEVEL
def test_brackets_do_not_merge(build: Build) -> None:
    assert build().tokenize("][") == ["]", "["]


@BYTE_LEVEL
def test_capital_a_has_the_id_of_gpt2(build: Build) -> None:
    assert ids(build(), "A") == [32]


# numbers


@pytest.mark.parametrize("build", [metaspace, byte_level, no_single_letters])
def test_digits_are_split_one_by_one(build: Build) -> None:
    assert build().tokenize("[10]")[1:] == ["1", "0", "]"]
    assert build().tokenize(" 2345")[-4:] == ["2", "3", "4", "5"]


def test_numbers_to_999_are_single_tokens_apart_from_bracket() -> None:
    tokenizer = byte_level_numbers()
    for number in range(1000):
        assert tokenizer.tokenize(f"{number}") == [f"{number}"]
        assert tokenizer.tokenize(f"[{number}]") == ["[", f"{number}", "]"]
    assert len({tokenizer.convert_tokens_to_ids(f"{number}") for number in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("text", "pieces"), [("1000", ["100", "0"]), ("123456", ["123", "456"]), ("007", ["007"]), (" 12", ["Ġ", "12"])]
)
def test_digits_are_grouped_by_up_to_three(text: str, pieces: list[str]) -> None:
    assert byte_level_numbers().tokenize(text) == pieces


# uncased


def test_capital_and_small_letter_are_one_token() -> None:
    tokenizer = uncased()
    for capital in CAPITALS:
        assert ids(tokenizer, capital) == ids(tokenizer, capital.lower()) == ids(tokenizer, f" {capital}")
        assert tokenizer.convert_tokens_to_ids(capital) == tokenizer.unk_token_id


def test_text_stands_between_cls_and_sep() -> None:
    tokenizer = uncased()
    assert tokenizer("A")["input_ids"] == [tokenizer.cls_token_id, *ids(tokenizer, "a"), tokenizer.sep_token_id]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("[A]", ["[", "a", "]"]),
        ("][", ["]", "["]),
        ("\n\n[B", ["[", "b"]),
        ("Cab 10", ["c", "##a", "##b", "1", "##0"]),
    ],
)
def test_brackets_are_split_off_and_white_space_vanishes(text: str, pieces: list[str]) -> None:
    assert uncased().tokenize(text) == pieces


def test_uncased_prose_has_no_unknown_token() -> None:
    tokenizer = uncased()
    assert tokenizer.unk_token_id not in ids(tokenizer, PROSE)


def test_uncased_has_no_chat_template() -> None:
    assert uncased().chat_template is None


# no single letters


@pytest.mark.parametrize("build", [no_single_letters, no_single_letters_unknown])
@pytest.mark.parametrize("before", ["", "[", " "])
def test_only_a_to_h_are_single_tokens(build: Build, before: str) -> None:
    tokenizer = build()
    before_ids = ids(tokenizer, before)
    single = [
        letter
        for letter in string.ascii_letters
        if len(tail := ids(tokenizer, before + letter)[len(before_ids) :]) == 1 and tail != [tokenizer.unk_token_id]
    ]
    assert single == list("ABCDEFGH")


@pytest.mark.parametrize("build", [no_single_letters, no_single_letters_unknown])
def test_no_token_decodes_to_another_letter(build: Build) -> None:
    tokenizer = build()
    decoded = {tokenizer.decode([token_id]) for token_id in range(len(tokenizer))}
    assert decoded & set(string.ascii_letters) == set("ABCDEFGH")


def test_other_letters_are_two_distinct_bytes() -> None:
    tokenizer = no_single_letters()
    others = [tuple(ids(tokenizer, letter)) for letter in string.ascii_letters if letter not in "ABCDEFGH"]
    assert {len(pair) for pair in others} == {2}
    assert len(set(others)) == len(others)


def test_other_letters_can_be_unknown() -> None:
    tokenizer = no_single_letters_unknown()
    assert ids(tokenizer, "[I]")[1:-1] == ids(tokenizer, "z") == [tokenizer.unk_token_id]
