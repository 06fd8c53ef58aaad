"""Window → token ids with slots for vectors, for the two kinds of vocabulary that PE-Rank checkpoints have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.sanitize import Sanitizer
from rerank.prompting.templates import Template, slots_of, vector_prompt
from rerank.types import Passage, Query

#: Stands for a vector while a prompt is text. A token of its own, so that the text around it is split as in training.
_SENTINEL = "<PLACEHOLDER>"


class VectorPrompts:
    """Renders windows for one tokenizer and template.

    Args:
        in_chat: write the chat markup and BOS of the tokenizer, as causal LMs were trained; otherwise the template's
            words only. Gives the tokenizer the token `<PLACEHOLDER>` if it has none.
        text_tokens: how many tokens of each passage a template with `{text}` shows beside the vector.
    """

    def __init__(self, template: Template, tokenizer: PreTrainedTokenizerBase, in_chat: bool, text_tokens: int) -> None:
        parts = (template.prefix, template.body, template.suffix)
        self.reads_text = "{text}" in template.body
        self.reads_query_vector = any("{query_vector}" in part for part in parts)
        #: How often the prompt says the query, or the instruction if that is said more often.
        self.query_repeats = max(1, *("".join(parts).count(field) for field in ("{query}", "{instruction}")))
        self._template = template
        self._tokenizer = tokenizer
        self._text_tokens = text_tokens
        self._in_chat = in_chat
        if in_chat:
            tokenizer.add_tokens([_SENTINEL], special_tokens=True)
        self._renderer = ListwiseRenderer(_with_sentinels(template), tokenizer, context_tokens=0, answer_tokens=0)
        self._neutral = Sanitizer(tokenizer, (template.system_message, template.prefix, template.suffix))
        self._render = self._chat_ids if in_chat else self._plain_ids
        self._cached = lru_cache(maxsize=1024)(self._render)

    def harmless(self, query: Query) -> Query:
        """The query as the prompt may hold it. Without chat markup, no text can be read as markup."""
        if not self._in_chat:
            return query
        return replace(query, text=self._neutral(query.text), instruction=self._neutral(query.instruction))

    def shown_text(self, passage: Passage) -> str:
        """What a template with `{text}` shows of a passage: neutral, and cut."""
        text = self._neutral(passage.text)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = [end for _, end in encoded["offset_mapping"]]
        return text[: ends[self._text_tokens - 1]] if len(ends) > self._text_tokens else text

    def token_ids(self, query: Query, passages: Sequence[Passage]) -> tuple[int, ...]:
        """The prompt of a harmless query and of passages whose texts are those to be shown."""
        texts = tuple(passage.text for passage in passages) if self.reads_text else ("",) * len(passages)
        return self._cached(query.text, query.instruction, texts)  # windows of a request share theirs

    def length(self, n: int) -> int:
        """How many positions n passages without text take, when the query is empty."""
        return len(self._render("", "", ("",) * n))

    def _plain_ids(self, text: str, instruction: str, texts: tuple[str, ...]) -> tuple[int, ...]:
        query = Query(text, instruction=instruction)
        return tuple(vector_prompt(self._template, self._tokenizer, query, len(texts), texts))

    def _chat_ids(self, text: str, instruction: str, texts: tuple[str, ...]) -> tuple[int, ...]:
        names = [str(rank) for rank in range(1, len(texts) + 1)]
        rendered = self._renderer.text(Query(text, instruction=instruction), names, texts)
        ids = self._renderer.token_ids(rendered)
        sentinel = cast(int, self._tokenizer.convert_tokens_to_ids(_SENTINEL))
        prefix, body, suffix = map(slots_of, (self._template.prefix, self._template.body, self._template.suffix))
        slots = [*prefix, *(body * len(texts)), *suffix]
        if ids.count(sentinel) != len(slots):
            raise CheckpointError(
                f"the chat template kept {ids.count(sentinel)} of {len(slots)} vectors; it must write the user's turn "
                "whole, and once"
            )
        in_order = iter(slots)
        return tuple(next(in_order) if token == sentinel else token for token in ids)


def _with_sentinels(template: Template) -> Template:
    """The template as one of texts only: sentinels for vectors, and the passage's text as its candidate."""

    def marked(part: str) -> str:
        return part.replace("{candidate}", _SENTINEL).replace("{query_vector}", _SENTINEL)

    body = marked(template.body).replace("{text}", "{candidate}")
    return replace(template, prefix=marked(template.prefix), body=body, suffix=marked(template.suffix))
