"""A window as text: template, chat markup, and passages cut to what the model can read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError, InvalidRequest
from rerank.neutral import Neutralizer
from rerank.prompts import Template
from rerank.types import Passage, Prepared, Query, Window

_FIELD = re.compile(r"\{(num|query|instruction|example|rank|candidate)\}")
#: Fewer tokens than these of each passage are not worth reading.
_LEAST_PASSAGE_TOKENS = 8
#: A cut text may take a token or two more than it did inside the whole.
_SLACK_TOKENS = 2


@dataclass(frozen=True, slots=True)
class ListwisePrompt:
    """The token ids of a prompt, and which places of the window were cut."""

    token_ids: list[int]
    truncated: tuple[int, ...]


class ListwiseRenderer:
    """Renders windows for one tokenizer and template.

    Args:
        context_tokens: what prompt and answer may take together.
        answer_tokens: what is kept free for the answer.
    """

    def __init__(
        self, template: Template, tokenizer: PreTrainedTokenizerBase, context_tokens: int, answer_tokens: int
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._prompt_tokens = context_tokens - answer_tokens
        self.neutral = Neutralizer(tokenizer, (template.system_message, template.prefix, template.suffix))
        self._token_ends = lru_cache(maxsize=4096)(self._find_token_ends)  # a passage is read in several windows

    def harmless(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Query and passages as neutral text, once a request."""
        neutral = self.neutral
        asked = replace(query, text=neutral(query.text), instruction=neutral(query.instruction))
        return Prepared(asked, tuple(replace(passage, text=neutral(passage.text)) for passage in passages))

    def prompt(self, window: Window, names: Sequence[str]) -> ListwisePrompt:
        """The prompt of a window whose query and passages are neutral text already.

        Args:
            names: identifiers in order, as many as there are passages or more.

        Raises:
            InvalidRequest: the query leaves too little room for the passages.
        """
        names = names[: len(window.passages)]
        limit = self._passage_limit(window, names)
        ends = [self._token_ends(passage.text) for passage in window.passages]
        truncated = tuple(place for place, own in enumerate(ends) if len(own) > limit)
        texts = [
            p.text[: own[limit - 1]] if len(own) > limit else p.text
            for p, own in zip(window.passages, ends, strict=True)
        ]
        return ListwisePrompt(self.token_ids(self.text(window.query, names, texts)), truncated)

    def text(self, query: Query, names: Sequence[str], texts: Sequence[str]) -> str:
        """The whole prompt, chat markup included."""
        example = " > ".join(f"[{name}]" for name in reversed(names[:2]))
        values = {"num": str(len(names)), "query": query.text, "instruction": query.instruction, "example": example}
        bodies = (
            _filled(self._template.body, values | {"rank": name, "candidate": text})
            for name, text in zip(names, texts, strict=True)
        )
        user = _filled(self._template.prefix, values) + "".join(bodies) + _filled(self._template.suffix, values)
        return chat(self._tokenizer, self._template.system_message, user)

    def token_ids(self, text: str) -> list[int]:
        """The ids of a rendered prompt, with exactly one BOS where the tokenizer uses one."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        bos = self._tokenizer.bos_token_id
        if bos is None:
            return ids
        if ids[:1] != [bos] and self._tokenizer("a", verbose=False)["input_ids"][0] == bos:
            ids = [bos, *ids]
        if ids.count(bos) > 1:
            raise CheckpointError(
                f"the prompt holds {ids.count(bos)} BOS tokens; the chat template must write at most one"
            )
        return ids

    def _passage_limit(self, window: Window, names: Sequence[str]) -> int:
        """The most tokens that each passage may have, so that all of them fit: short ones leave room to long ones."""
        room = self._prompt_tokens - len(self.token_ids(self.text(window.query, names, [""] * len(names))))
        lengths = sorted(len(self._token_ends(passage.text)) + _SLACK_TOKENS for passage in window.passages)
        for shorter, length in enumerate(lengths):
            share = room // (len(lengths) - shorter)
            if length > share:
                return self._checked_limit(share - _SLACK_TOKENS, len(lengths))
            room -= length
        return max(lengths, default=0)

    def _checked_limit(self, limit: int, passages: int) -> int:
        if limit < _LEAST_PASSAGE_TOKENS:
            raise InvalidRequest(
                "query",
                f"query and instruction leave {max(limit, 0)} tokens for each of the {passages} passages of a window, "
                f"of {self._prompt_tokens} that the model reads; use a shorter query or a smaller window_size",
                {"limit": str(self._prompt_tokens)},
            )
        return limit

    def _find_token_ends(self, text: str) -> tuple[int, ...]:
        """Where in the text each of its tokens ends."""
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return tuple(end for _, end in encoded["offset_mapping"])


def chat(tokenizer: PreTrainedTokenizerBase, system: str, user: str) -> str:
    """One turn of the user in the model's chat markup, ready for its answer; as it is for a model without one."""
    if not tokenizer.chat_template:
        return "\n".join(part for part in (system, user) if part)
    messages = [{"role": "system", "content": system}] if system else []
    try:
        return _apply(tokenizer, [*messages, {"role": "user", "content": user}])
    except jinja2.TemplateError:  # the template knows no system role
        return _apply(tokenizer, [{"role": "user", "content": f"{system}\n{user}"}])


def _apply(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> str:
    options: dict[str, Any] = {"enable_thinking": False}  # Qwen3 would otherwise open a thought
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return str(text)


def _filled(part: str, values: dict[str, str]) -> str:
    """The part with its fields filled in one pass, so that values are never read as fields."""
    return _FIELD.sub(lambda field: values.get(field[1], field[0]), part)
