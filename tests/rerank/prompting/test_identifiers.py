"""Identifiers of every tokenizer family: single tokens, all different, or refused with the number there is."""

from __future__ import annotations

import string

import pytest
from transformers import PreTrainedTokenizerBase

from rerank.prompting.identifiers import IdentifierKind, derive_identifiers
from tests.small_tokenizers import byte_level, byte_level_numbers, metaspace, no_single_letters, uncased

CAPITALS, SMALL = string.ascii_uppercase, string.ascii_lowercase
LETTERS, NUMBERS = IdentifierKind.LETTERS, IdentifierKind.NUMBERS

#: Family, what its prompts end with, and the identifiers that it has.
FAMILIES = {
    "metaspace": (metaspace(), "<|assistant|>\n", CAPITALS + SMALL, 9),
    "metaspace, ][ merges": (metaspace("instruct"), " [/INST]", CAPITALS + SMALL, 9),
    "byte-level": (byte_level(), "<|im_start|>assistant\n", CAPITALS + SMALL, 9),
    "byte-level, numbers": (byte_level_numbers(), "<|end_header_id|>\n\n", CAPITALS + SMALL, 999),
    "uncased": (uncased(), "answer:\n", SMALL, 9),
    "eight letters": (no_single_letters(), "\n", CAPITALS[:8], 9),
}
families = pytest.mark.parametrize(("tokenizer", "prompt_end", "letters", "numbers"), FAMILIES.values(), ids=FAMILIES)


@families
def test_letters_are_those_that_the_family_has(
    tokenizer: PreTrainedTokenizerBase, prompt_end: str, letters: str, numbers: int
) -> None:
    assert "".join(derive_identifiers(tokenizer, LETTERS, prompt_end).texts) == letters


@families
def test_numbers_stop_where_they_become_several_tokens(
    tokenizer: PreTrainedTokenizerBase, prompt_end: str, letters: str, numbers: int
) -> None:
    texts = derive_identifiers(tokenizer, NUMBERS, prompt_end).texts
    assert texts == tuple(str(number) for number in range(1, numbers + 1))


@families
@pytest.mark.parametrize("kind", IdentifierKind)
def test_tokens_are_distinct_known_and_read_as_what_they_name(
    tokenizer: PreTrainedTokenizerBase, prompt_end: str, letters: str, numbers: int, kind: IdentifierKind
) -> None:
    found = derive_identifiers(tokenizer, kind, prompt_end)
    assert len(set(found.token_ids)) == len(found.token_ids) == len(found)
    assert not {found.bracket_id, *found.token_ids} & {tokenizer.unk_token_id, *tokenizer.all_special_ids}
    for text, token_id in zip(found.texts, found.token_ids, strict=True):
        assert tokenizer.decode([found.bracket_id, token_id]).replace(" ", "") == f"[{text}"


def test_letter_behind_a_bracket_is_not_the_letter_that_begins_a_word() -> None:
    tokenizer = metaspace()
    found = derive_identifiers(tokenizer, LETTERS, "\n")
    assert found.token_ids[0] == tokenizer.convert_tokens_to_ids("A") != tokenizer.convert_tokens_to_ids("▁A")


def test_merged_bracket_and_letter_are_taken_apart() -> None:
    """`[A` is one token, `[O` and `[Q` are two: all 26 must get the bare letter's token."""
    tokenizer = byte_level()
    found = derive_identifiers(tokenizer, LETTERS, "\n")
    assert list(found.token_ids) == tokenizer.convert_tokens_to_ids(list(CAPITALS + SMALL))
    assert found.bracket_id == tokenizer.convert_tokens_to_ids("[")


def test_bracket_that_merges_with_the_prompt_is_taken_bare() -> None:
    tokenizer = metaspace("instruct")
    found = derive_identifiers(tokenizer, LETTERS, " [/INST]")
    assert found.bracket_id == tokenizer.convert_tokens_to_ids("[")
    assert tokenizer(" [/INST][", add_special_tokens=False)["input_ids"][-1] == tokenizer.convert_tokens_to_ids("][")
