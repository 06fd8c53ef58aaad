"""Renders windows of passages as listwise prompts, sanitized, and truncated to fit the model's context.

A prompt is assembled from segments: its passages, and the text between them. A passage is tokenised once, however many
windows it appears in. Tokens can span the boundary of two segments ("." and a line end are one token of Llama-3), so
white space counts as part of the passage that it touches, and every segment is tokenised next to its neighbours' text.
If a token spans a boundary there, the prompt is tokenised as a whole. The token ids are the same either way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, dropwhile

from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError
from rerank.prompting.chat import render_chat
from rerank.prompting.sanitize import Sanitizer
from rerank.prompting.segments import (
    PLACEHOLDER,
    PassageContext,
    SegmentTokenizer,
    TokenIds,
    passage_contexts,
    segment_bytes,
    split_segments,
)
from rerank.prompting.templates import Template
from rerank.prompting.truncate import SLACK_TOKENS, beginning, first_tokens, passage_limit
from rerank.types import Passage, Prepared, Query, Window
from rerank.util.byte_cache import cached_by_bytes

_FIELD = re.compile(r"\{(num|query|instruction|example|rank|candidate)\}")
#: Marks the places of passages in a rendered prompt. A Unicode noncharacter, so no text contains it.
_PASSAGE_MARKER = "\ufdd0"
_NO_CHAT = (
    "the tokenizer has no chat template, so the prompt is plain text; a model that was trained on conversations "
    "needs a profile, or `prompt: {chat_template: ...}`"
)
_TWO_BOS = (
    "the prompt begins with two BOS tokens; change the chat template to write at most one, or set "
    "`prompt: {bos_tokens: 2}` for a model that was trained so"
)
#: Stands for a passage while the segments around it are verified.
_OTHER = "another"


@dataclass(frozen=True, slots=True)
class ListwisePrompt:
    """The token ids of a prompt, and the positions in the window of the passages that were truncated."""

    token_ids: list[int]
    truncated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Skeleton:
    """A prompt without its n passages.

    Attributes:
        n_tokens: length of the prompt when all passages are empty.
        contexts: the contexts of the n passages.
        segments: token ids before, between and after the passages, n + 1; None if tokens span their boundaries.
    """

    n_tokens: int
    contexts: tuple[PassageContext, ...] = ()
    segments: tuple[TokenIds, ...] | None = None


class ListwiseRenderer:
    """Renders windows as prompts for one tokenizer and template.

    Args:
        context_tokens: maximum length of prompt and answer together.
        answer_tokens: tokens that every prompt leaves free for the answer.
        passage_tokens: maximum number of tokens shown per passage, as in training; 0: as many as fit.
        thinks: the model is to reason before it answers.

    Attributes:
        passage_tokens: the same, where 0 is the length of the context.
        warning: why prompts may differ from those of the training; empty if nothing is known to differ.
        token_ends: text → the end of each of its tokens, in characters.
    """

    def __init__(
        self,
        template: Template,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        answer_tokens: int,
        passage_tokens: int = 0,
        thinks: bool = False,
    ) -> None:
        self.template = template
        self._thinks = thinks
        self._tokenizer = tokenizer
        if not template.chat_markup:
            tokenizer.chat_template = None
        elif template.style.chat_template and not tokenizer.chat_template:
            tokenizer.chat_template = template.style.chat_template
        self.warning = _NO_CHAT if template.system_message and not tokenizer.chat_template else ""
        self._restyles = template.style.changes_passages
        self._ends_turns = bool(template.body_assistant)
        self._prompt_tokens = context_tokens - answer_tokens
        self.passage_tokens = min(passage_tokens or context_tokens, context_tokens)
        self.sanitize = Sanitizer(tokenizer, (template.system_message, template.prefix, template.suffix))
        self._segments = SegmentTokenizer(tokenizer)
        self._bos_tokens = template.style.bos_tokens if tokenizer.bos_token_id is not None else None
        self._adds_bos = tokenizer("a", verbose=False)["input_ids"][0] == tokenizer.bos_token_id
        self._skeleton = lru_cache(maxsize=64)(self._make_skeleton)  # windows of a request share theirs
        self._inner_context = self._context_between()
        #: Tokens of an empty passage, which are those of its white space.
        self._empty_tokens = len(self._segments.tokenize_passage("", self._inner_context) or ())
        self.token_ends = cached_by_bytes(self._segments.token_ends, segment_bytes)  # a passage is in several windows

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Sanitizes the texts, cuts a long query, and tokenises each distinct passage as far as it is shown."""
        shown = {(p.text, p.title): self._shown(self._beginning(p), p.title) for p in passages}
        token_ids = self._segments.tokenize_passages(list(shown.values()), self._inner_context)
        ids = dict(zip(shown, token_ids, strict=True))
        prepared = tuple(replace(p, text=shown[p.text, p.title], token_ids=ids[p.text, p.title]) for p in passages)
        return Prepared(self._fitting_query(query), prepared)

    def _fitting_query(self, query: Query) -> Query:
        """Sanitizes a query, and cuts it to half of the prompt with its instruction, so that passages keep room."""
        text, instruction = self.sanitize(query.text), self.sanitize(query.instruction)
        most = self._prompt_tokens // (2 * self.template.query_repeats) - len(self.token_ends(instruction))
        cut = first_tokens(text, max(1, most), self.token_ends)
        return replace(query, text=cut, instruction=instruction, is_truncated=query.is_truncated or cut != text)

    def prompt(self, window: Window, names: Sequence[str], answer_tokens: int = 0) -> ListwisePrompt:
        """Returns the prompt of a window whose query and passages are sanitized.

        Args:
            names: identifiers of the passages, in order; at least as many as passages.
            answer_tokens: tokens to leave free for the answer to this window, in addition to those of the renderer.

        Raises:
            InvalidRequest: the query leaves too little room for the passages.
        """
        names = tuple(names[: len(window.passages)])
        skeleton = self._skeleton(window.query.text, window.query.instruction, names)
        passages = self._fitting(window.passages, skeleton.n_tokens, self._prompt_tokens - answer_tokens)
        truncated = tuple(i for i, passage in enumerate(passages) if passage is not window.passages[i])
        token_ids = self._assemble(skeleton, passages)
        if token_ids is None:
            token_ids = self.tokenize(self.render(window.query, names, [passage.text for passage in passages]))
        return ListwisePrompt(token_ids, truncated)

    def _beginning(self, passage: Passage) -> str:
        """Cuts off the end of a text that can never be shown, before anything else is done with it."""
        shown = partial(self._shown, title=passage.title)
        return beginning(passage.text, self.passage_tokens, lambda start: len(self._segments.tokenize(shown(start))))

    def _shown(self, text: str, title: str) -> str:
        """Returns the text of a passage as prompts show it."""
        return self.sanitize(self.template.style.passage_text(text, title) if self._restyles else text)

    def render(self, query: Query, names: Sequence[str], texts: Sequence[str]) -> str:
        """Returns the text of a prompt with these passage texts, including chat markup."""
        example = " > ".join(f"[{name}]" for name in reversed(names[:2]))
        values = {"num": str(len(names)), "query": query.text, "instruction": query.instruction, "example": example}
        passages = [values | {"rank": name, "candidate": text} for name, text in zip(names, texts, strict=True)]
        parts = [(self.template.prefix, self.template.prefix_assistant, values)]
        parts += [(self.template.body, self.template.body_assistant, passage) for passage in passages]
        turns, user = list[tuple[str, str]](), ""
        for text, answer, fields in parts:
            user += fill_fields(text, fields)
            if answer:
                turns.append((user, fill_fields(answer, fields)))
                user = ""
        user += fill_fields(self.template.suffix, values)
        system = self.template.system_message
        if self._tokenizer.chat_template:
            return render_chat(self._tokenizer, system, user, turns, self._thinks)
        return "\n".join(text for text in (system, *chain.from_iterable(turns), user) if text)

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of a rendered prompt. BOS tokens inside it are turn marks, as ChatML models have them.

        Raises:
            CheckpointError: it begins with two BOS tokens, and the style does not say so.
        """
        ids, bos = self._segments.tokenize(text), self._tokenizer.bos_token_id
        rest = list(dropwhile(lambda token: token == bos, ids))
        written = max(len(ids) - len(rest), self._adds_bos)
        if written > 1 and self._bos_tokens is None:
            raise CheckpointError(_TWO_BOS)
        return [bos] * (written if self._bos_tokens is None else self._bos_tokens) + rest

    @property
    def opens_reasoning(self) -> bool:
        """True if every prompt ends with the mark that begins a reasoning."""
        return self.prompt_end.rstrip().endswith("<think>")

    @cached_property
    def prompt_end(self) -> str:
        """The last characters of every prompt, on which the token ids of the identifiers depend."""
        return self.render(Query("query"), ["A"], ["passage"])[-16:]

    def _make_skeleton(self, text: str, instruction: str, names: tuple[str, ...]) -> _Skeleton:
        """Returns the skeleton for a query: a prompt of placeholders without these, verified on a prompt of others."""
        query, n = Query(text, instruction=instruction), len(names)
        texts = ("", PLACEHOLDER, _OTHER)
        empty, tokenised, expected = (
            self.tokenize(self.render(query, names, [passage_text] * n)) for passage_text in texts
        )
        contexts = passage_contexts(self.render(query, names, [_PASSAGE_MARKER] * n).split(_PASSAGE_MARKER))
        contexts = (*map(self._as_inner_context, contexts[:-1]), *contexts[-1:])
        segments = split_segments(
            tokenised, [self._segments.tokenize_passage(PLACEHOLDER, context) for context in contexts]
        )
        # Placeholders cannot verify passages that touch each other, because tokens could span two passages.
        if all(context.left and context.right for context in contexts):
            skeleton = _Skeleton(len(empty), contexts, segments)
            if self._assemble(skeleton, [Passage("", _OTHER)] * n) == expected:
                return skeleton
        return _Skeleton(len(empty))

    def _assemble(self, skeleton: _Skeleton, passages: Sequence[Passage]) -> list[int] | None:
        """Returns the token ids of a prompt from those of its segments, or None if a token spans a boundary."""
        if skeleton.segments is None or (self._ends_turns and any(map(_may_be_trimmed, passages))):
            return None
        token_ids = list(skeleton.segments[0])
        for passage, context, following in zip(passages, skeleton.contexts, skeleton.segments[1:], strict=True):
            prepared = passage.token_ids if context == self._inner_context else None
            passage_ids = prepared or self._segments.tokenize_passage(passage.text, context)
            if passage_ids is None:
                return None
            token_ids += passage_ids
            token_ids += following
        return token_ids

    def _context_between(self) -> PassageContext:
        """Returns the context of a passage between two others."""
        parts = self.render(Query(PLACEHOLDER), ("A", "B", "C"), [_PASSAGE_MARKER] * 3).split(_PASSAGE_MARKER)
        return passage_contexts(parts)[1] if len(parts) == 4 else PassageContext("", "", "", "")

    def _as_inner_context(self, context: PassageContext) -> PassageContext:
        """Returns the inner context if the white space is the same: identifiers around do not change token ids."""
        inner = self._inner_context
        same = (context.space_before, context.space_after) == (inner.space_before, inner.space_after)
        return inner if same else context

    def _length(self, passage: Passage) -> int:
        """Returns the number of tokens that the passage adds to a prompt in which it was empty."""
        ids = passage.token_ids or self._segments.tokenize_passage(passage.text, self._inner_context)
        return len(self.token_ends(passage.text)) if ids is None else max(0, len(ids) - self._empty_tokens)

    def _truncate(self, passage: Passage, tokens: int) -> Passage:
        """Returns the passage with only the first tokens of its text."""
        ends = self.token_ends(passage.text)
        return Passage(passage.doc_id, passage.text[: ends[tokens - 1]]) if len(ends) > tokens else passage

    def _fitting(self, passages: Sequence[Passage], skeleton_tokens: int, prompt_tokens: int) -> Sequence[Passage]:
        """Truncates passages to `passage_tokens`, and so that all of them fit into the prompt."""
        lengths = [self._length(passage) for passage in passages]
        room, shown = prompt_tokens - skeleton_tokens, [min(length, self.passage_tokens) for length in lengths]
        fits = sum(shown) + SLACK_TOKENS * len(shown) <= max(0, room)
        if fits and shown == lengths:
            return passages
        limit = self.passage_tokens if fits else min(self.passage_tokens, passage_limit(shown, room, prompt_tokens))
        return [
            passage if length <= limit else self._truncate(passage, limit)
            for passage, length in zip(passages, lengths, strict=True)
        ]


def fill_fields(part: str, values: dict[str, str]) -> str:
    """Returns the template part with its fields replaced in one pass, so that values are never read as fields."""
    return _FIELD.sub(lambda field: values.get(field[1], field[0]), part)


def _may_be_trimmed(passage: Passage) -> bool:
    """Returns True if a chat template that trims turns could change a turn that ends with the passage."""
    return not passage.text or passage.text.strip() != passage.text
