"""Derives the identifiers of passages, "[A]" or "[1]", and their token ids from a tokenizer, and verifies them.

FIRST reads the logits of all identifiers at one position. Tokenizers split "[A]" in different ways: some have "A" and
"▁A", some merge "[A" for most letters but not for O and Q, some merge "][". So the prompt ends with the opening bracket
as a separate token, the token of the bare identifier follows, and the model is given token ids, never text.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError

#: The brackets around an identifier.
OPEN, CLOSE = "[", "]"
#: The largest identifier of the kind `numbers`.
_MAX_NUMBER = 999


class IdentifierKind(StrEnum):
    """The alphabet of the identifiers."""

    LETTERS = "letters"
    NUMBERS = "numbers"


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The identifiers of a window's passages, in order, with their token ids.

    Attributes:
        texts: "A", "B", … or "1", "2", …, up to the first that is not a single token.
        token_ids: the token id of each text, all different.
        bracket_id: the token id of the opening bracket at the end of a prompt.
    """

    kind: IdentifierKind
    texts: tuple[str, ...]
    token_ids: tuple[int, ...]
    bracket_id: int

    def __len__(self) -> int:
        return len(self.texts)


def derive_identifiers(tokenizer: PreTrainedTokenizerBase, kind: IdentifierKind, prompt_end: str = "\n") -> Identifiers:
    """Returns the identifiers of a kind that are single tokens after an opening bracket, up to the first that is not.

    Args:
        prompt_end: the text before the bracket, such as `ListwiseRenderer.prompt_end`.

    Raises:
        CheckpointError: fewer than two identifiers are single tokens, or the bracket is not a token.
    """
    bracket_id = _bracket_id(tokenizer, prompt_end)
    texts: list[str] = []
    token_ids: list[int] = []
    for text in alphabet(tokenizer, kind):
        token_id = _identifier_id(tokenizer, prompt_end, bracket_id, text)
        if token_id is None:
            break
        texts.append(text)
        token_ids.append(token_id)
    if len(texts) < 2:
        raise CheckpointError(
            f"{type(tokenizer).__name__} has single tokens for {len(texts)} {kind}, at least 2 are needed; use "
            f"{', '.join(other for other in IdentifierKind if other != kind)} or another model"
        )
    return Identifiers(kind, tuple(texts), tuple(token_ids), bracket_id)


def alphabet(tokenizer: PreTrainedTokenizerBase, kind: IdentifierKind) -> list[str]:
    """Returns all identifiers of a kind, in order. A tokenizer without capitals gets lower-case letters only."""
    if kind is IdentifierKind.NUMBERS:
        return [str(number) for number in range(1, _MAX_NUMBER + 1)]
    has_capitals = _decoded(tokenizer, _plain_ids(tokenizer, "A")) == "A"
    return list(string.ascii_uppercase + string.ascii_lowercase if has_capitals else string.ascii_lowercase)


def _bracket_id(tokenizer: PreTrainedTokenizerBase, prompt_end: str) -> int:
    """Returns the token id of the opening bracket after the prompt.

    If the tokenizer merges the bracket with the text before it, this is the id of the token that is the bracket alone.

    Raises:
        CheckpointError: the vocabulary has no such token.
    """
    before, after = _plain_ids(tokenizer, prompt_end), _plain_ids(tokenizer, prompt_end + OPEN)
    if len(after) == len(before) + 1 and after[:-1] == before:
        return after[-1]
    bare = _vocabulary_id(tokenizer, OPEN)
    if bare is None:
        raise CheckpointError(f"{type(tokenizer).__name__} has no token for {OPEN!r}; use another model")
    return bare


def _identifier_id(tokenizer: PreTrainedTokenizerBase, prompt_end: str, bracket_id: int, text: str) -> int | None:
    """Returns the token id of an identifier after the bracket, or None if it is not a single token."""
    for token_id in (_token_after_bracket(tokenizer, prompt_end, text), _vocabulary_id(tokenizer, text)):
        if token_id is not None and _decoded(tokenizer, [bracket_id, token_id]).endswith(OPEN + text):
            return token_id
    return None


def _token_after_bracket(tokenizer: PreTrainedTokenizerBase, prompt_end: str, text: str) -> int | None:
    """Returns the token id between the brackets of "[text]", or None if it is not one separate token."""
    opened = _plain_ids(tokenizer, prompt_end + OPEN)
    closed = _plain_ids(tokenizer, prompt_end + OPEN + text + CLOSE)
    between = closed[len(opened) : -1]
    return between[0] if closed[: len(opened)] == opened and len(between) == 1 else None


def _vocabulary_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    """Returns the id of a token with exactly this spelling, without a word-start marker."""
    ids: list[int | None] = cast(Any, tokenizer).convert_tokens_to_ids([token])  # get_vocab() copies the vocabulary
    (token_id,) = ids
    return None if token_id in {None, tokenizer.unk_token_id, *tokenizer.all_special_ids} else token_id


def _plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    return ids


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)).replace(" ", "")
