"""Renders windows as PE-Rank prompts: token ids with slots, which vectors of passages and query replace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError, ConfigError, InvalidRequest
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import Template
from rerank.prompting.tokens import beginning, first_tokens
from rerank.types import Passage, Query
from rerank.util.combining import nfc

#: Stands for a token id where the vector of the next passage goes.
PASSAGE_SLOT = -1
#: Stands for a token id where the vector of the query goes.
QUERY_SLOT = -2

#: Field of a template → the slot of its vector.
_SLOTS = {"candidate": PASSAGE_SLOT, "query_vector": QUERY_SLOT}
_FIELD = re.compile(r"\{(num|query|instruction|rank|candidate|text|query_vector)\}")
#: Marks a vector in a prompt's text. A separate token, so that the text around it is tokenised as in training.
_VECTOR_MARKER = "<PLACEHOLDER>"


class VectorPrompts:
    """Renders windows as PE-Rank prompts for one tokenizer and template.

    Prompts of a checkpoint with its own vocabulary have the chat markup and BOS of its tokenizer; prompts of a
    checkpoint that uses the encoder's vocabulary have the template's text only.

    Args:
        template: the prompt's words and style.
        tokenizer: the tokenizer of the checkpoint or of the encoder.
        in_chat: whether prompts have chat markup and BOS. If so, the tokenizer gets the token `<PLACEHOLDER>`.
        text_tokens: largest number of tokens of text next to a passage's vector, if the template has `{text}`.

    Attributes:
        reads_text: the template shows the text of passages.
        reads_query_vector: the template has a slot for the query's vector.

    Raises:
        ConfigError: the template has words of the assistant.
    """

    def __init__(self, template: Template, tokenizer: PreTrainedTokenizerBase, in_chat: bool, text_tokens: int) -> None:
        if template.prefix_assistant or template.body_assistant:
            raise ConfigError("a prompt of vectors is one turn; use a template without words of the assistant")
        parts = (template.prefix, template.body, template.suffix)
        self.reads_text = "{text}" in template.body
        self.reads_query_vector = any("{query_vector}" in part for part in parts)
        self._template = template
        self._tokenizer = tokenizer
        self._text_tokens = text_tokens
        self._in_chat = in_chat
        if in_chat:
            tokenizer.add_tokens([_VECTOR_MARKER], special_tokens=True)
        self._renderer = ListwiseRenderer(_with_markers(template), tokenizer, context_tokens=0, answer_tokens=0)
        self._sanitize = self._renderer.sanitize
        self._render = self._render_chat if in_chat else self._render_plain

    def sanitize(self, query: Query) -> Query:
        """Returns the sanitized query; without chat markup in NFC only, because then no text can imitate markup."""
        if not self._in_chat:
            return replace(query, text=nfc(query.text), instruction=nfc(query.instruction))
        return replace(query, text=self._sanitize(query.text), instruction=self._sanitize(query.instruction))

    def shown_text(self, passage: Passage) -> str:
        """Returns the text of a passage that a template with `{text}` shows: sanitized and truncated."""
        start = beginning(
            passage.text, self._text_tokens, lambda text: len(self._renderer.token_ends(self._sanitize(text)))
        )
        return first_tokens(self._sanitize(start), self._text_tokens, self._renderer.token_ends)

    def fitting(self, query: Query, most: int) -> Query:
        """Returns a sanitized query whose text is cut so that text and instruction have at most `most` tokens.

        Raises:
            InvalidRequest: the instruction leaves no room for the query.
        """
        instruction = len(self._renderer.token_ends(query.instruction))
        if instruction >= most:
            raise InvalidRequest(
                "query.instruction",
                f"the instruction is {instruction} tokens long, and with the query at most {most} are read; shorten it",
                {"tokens": str(instruction), "limit": str(most)},
            )
        text = first_tokens(query.text, most - instruction, self._renderer.token_ends)
        return query if text == query.text else replace(query, text=text, is_truncated=True)

    def token_ids(self, query: Query, passages: Sequence[Passage]) -> tuple[int, ...]:
        """Returns the token ids and slots of the prompt of a sanitized query and passages with their `shown_text`."""
        texts = tuple(passage.text for passage in passages) if self.reads_text else ("",) * len(passages)
        return self._render(query.text, query.instruction, texts)

    def length(self, n: int) -> int:
        """Returns the number of token ids and slots of a prompt with an empty query and n passages without text."""
        return len(self._render("", "", ("",) * n))

    def _render_plain(self, text: str, instruction: str, texts: tuple[str, ...]) -> tuple[int, ...]:
        """Renders without chat markup. Special tokens that are written in texts are read as plain words."""
        ids: list[int] = []
        for segment in _segments(self._template, Query(text, instruction=instruction), texts):
            if isinstance(segment, int):
                ids.append(segment)
            else:
                options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
                ids += self._tokenizer(segment, **options)["input_ids"]
        return tuple(ids)

    def _render_chat(self, text: str, instruction: str, texts: tuple[str, ...]) -> tuple[int, ...]:
        """Renders a prompt with chat markup, tokenizes it, and replaces the markers of vectors by slots."""
        names = [str(rank) for rank in range(1, len(texts) + 1)]
        ids = self._renderer.tokenize(self._renderer.render(Query(text, instruction=instruction), names, texts))
        marker = cast(int, self._tokenizer.convert_tokens_to_ids(_VECTOR_MARKER))
        prefix, body, suffix = map(_slots, (self._template.prefix, self._template.body, self._template.suffix))
        slots = [*prefix, *(body * len(texts)), *suffix]
        if ids.count(marker) != len(slots):
            raise CheckpointError(
                f"the chat template kept {ids.count(marker)} of {len(slots)} vectors; change it to write the user's "
                "turn in full and once"
            )
        next_slot = iter(slots)
        return tuple(next(next_slot) if token == marker else token for token in ids)


def _slots(part: str) -> list[int]:
    return [_SLOTS[field] for field in _FIELD.findall(part) if field in _SLOTS]


def _segments(template: Template, query: Query, texts: Sequence[str]) -> Iterator[str | int]:
    """Yields the slots of a prompt, and the text before, between and after them."""
    instruction = template.instruction_text(query.instruction)
    values = {"num": str(len(texts)), "query": query.text, "instruction": instruction, "rank": "", "text": ""}
    bodies = [(template.body, values | {"rank": str(rank), "text": text}) for rank, text in enumerate(texts, 1)]
    text = ""
    for part, part_values in [(template.prefix, values), *bodies, (template.suffix, values)]:
        for index, token in enumerate(_FIELD.split(part)):  # text and field names in turn
            if index % 2 == 0:
                text += token
            elif token in _SLOTS:
                if text.strip():
                    yield text
                yield _SLOTS[token]
                text = ""
            else:
                text += part_values[token]
    if text.strip():
        yield text


def _with_markers(template: Template) -> Template:
    """Returns the template with markers instead of vectors, and the passage's text as its candidate."""

    def mark(part: str) -> str:
        return part.replace("{candidate}", _VECTOR_MARKER).replace("{query_vector}", _VECTOR_MARKER)

    body = mark(template.body).replace("{text}", "{candidate}")
    return replace(template, prefix=mark(template.prefix), body=body, suffix=mark(template.suffix))
