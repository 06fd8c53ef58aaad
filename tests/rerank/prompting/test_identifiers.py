"""Identifiers of every tokenizer family: single tokens, all different, and as many as the family has."""

import string

import pytest

from rerank.prompting.identifiers import IdentifierKind, derive_identifiers
from tests.small_tokenizers import byte_level, byte_level_numbers, metaspace, no_single_letters, uncased

CAPITALS, SMALL = string.ascii_uppercase, string.ascii_lowercase
LETTERS, NUMBERS = IdentifierKind.LETTERS, IdentifierKind.NUMBERS

#: Tokenizer, the end of its prompts, its letters and the largest of its numbers.
FAMILIES = {
    "metaspace": (metaspace(), "<|assistant|>\n", CAPITALS + SMALL, 9),
    "metaspace, ][ merges": (metaspace("instruct"), " [/INST]", CAPITALS + SMALL, 9),
    "byte-level": (byte_level(), "<|im_start|>assistant\n", CAPITALS + SMALL, 9),
    "byte-level, numbers": (byte_level_numbers(), "<|end_header_id|>\n\n", CAPITALS + SMALL, 999),
    "uncased": (uncased(), "answer:\n", SMALL, 9),
    "eight letters": (no_single_letters(), "\n", CAPITALS[:8], 9),
}


@pytest.mark.parametrize(("tokenizer", "prompt_end", "letters", "numbers"), FAMILIES.values(), ids=FAMILIES)
def test_identifiers_are_the_single_tokens_of_the_family(tokenizer, prompt_end, letters, numbers):
    expected = {LETTERS: tuple(letters), NUMBERS: tuple(str(number) for number in range(1, numbers + 1))}
    for kind, texts in expected.items():
        identifiers = derive_identifiers(tokenizer, kind, prompt_end)
        assert identifiers.texts == texts
        assert len(set(identifiers.token_ids)) == len(identifiers.token_ids) == len(identifiers)
        special = {tokenizer.unk_token_id, *tokenizer.all_special_ids}
        assert not {identifiers.bracket_id, *identifiers.token_ids} & special
        for text, token_id in zip(identifiers.texts, identifiers.token_ids, strict=True):
            assert tokenizer.decode([identifiers.bracket_id, token_id]).replace(" ", "") == f"[{text}"
