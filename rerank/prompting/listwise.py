"""Listwise prompts: a window of passages → token ids, with long passages truncated to fit the model's context.

A prompt is assembled from segments: its passages, and the text between them. A passage is tokenised once, however many
windows it appears in. Tokens can span the boundary of two segments ("." and a line end are one token of Llama-3), so
white space counts as part of the passage that it touches, and every segment is tokenised next to its neighbours' text.
If a token spans a boundary there, the prompt is tokenised as a whole. The token ids are the same either way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import dropwhile, pairwise
from typing import TypeAlias, cast

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rerank.errors import CheckpointError, InvalidRequest
from rerank.prompting.cache import BYTES_PER_TOKEN, cached_by_bytes
from rerank.prompting.chat import render_chat
from rerank.prompting.sanitize import Sanitizer
from rerank.prompting.templates import Template
from rerank.prompting.truncate import CHARS_PER_TOKEN, beginning
from rerank.types import Passage, Prepared, Query, Window

TokenIds: TypeAlias = tuple[int, ...]

_FIELD = re.compile(r"\{(num|query|instruction|example|rank|candidate)\}")
#: A text between its leading and its trailing white space.
_TRIMMED = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
#: The minimum length of a truncated passage; fewer tokens are not worth reading.
_MIN_PASSAGE_TOKENS = 8
#: A truncated passage may take a token or two more than the same text did inside the full passage.
_SLACK_TOKENS = 2
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
_REASONING = "<think>"
#: Placeholder text for a passage, next to which other segments are tokenised.
_PLACEHOLDER = "any"
#: This many characters after a passage show whether a token spans the boundary.
_RIGHT_CHARS = 8


@dataclass(frozen=True, slots=True)
class ListwisePrompt:
    """The token ids of a prompt, and the positions in the window of the passages that were truncated."""

    token_ids: list[int]
    truncated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PassageContext:
    """The text next to a passage: the end of the left part, white space on both sides, the start of the right part."""

    left: str
    space_before: str
    space_after: str
    right: str


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
        self.token_ends = cached_by_bytes(self._segments.token_ends, _segment_bytes)  # a passage is in several windows

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Sanitizes query and passages and tokenises each distinct passage, up to the tokens that are shown."""
        if self._restyles:
            passages = [replace(p, text=self.template.style.passage_text(p.text, p.title)) for p in passages]
        most = CHARS_PER_TOKEN * self.passage_tokens
        texts = {t: self.sanitize(t if len(t) <= most else self._beginning(t)) for t in {p.text for p in passages}}
        token_ids = self._segments.tokenize_passages(list(texts.values()), self._inner_context)
        ids = dict(zip(texts, token_ids, strict=True))
        prepared = (replace(p, text=texts[p.text], token_ids=ids[p.text]) for p in passages)
        query = replace(query, text=self.sanitize(query.text), instruction=self.sanitize(query.instruction))
        return Prepared(query, tuple(prepared))

    def prompt(self, window: Window, names: Sequence[str], answer_tokens: int = 0) -> ListwisePrompt:
        """The prompt of a window whose query and passages are sanitized.

        Args:
            names: identifiers of the passages, in order; at least as many as passages.
            answer_tokens: tokens to leave free for the answer to this window, in addition to those of the renderer.

        Raises:
            InvalidRequest: the query leaves too little room for the passages.
        """
        names = tuple(names[: len(window.passages)])
        skeleton = self._skeleton(window.query.text, window.query.instruction, names)
        lengths = [self._length(passage) for passage in window.passages]
        shown = [min(length, self.passage_tokens) for length in lengths]
        limit = self._passage_limit(skeleton.n_tokens, shown, self._prompt_tokens - answer_tokens)
        limit = min(limit, self.passage_tokens)
        passages = [
            passage if length <= limit else self._truncate(passage, limit)
            for passage, length in zip(window.passages, lengths, strict=True)
        ]
        truncated = tuple(i for i, passage in enumerate(passages) if passage is not window.passages[i])
        token_ids = self._assemble(skeleton, passages)
        if token_ids is None:
            token_ids = self.tokenize(self.render(window.query, names, [passage.text for passage in passages]))
        return ListwisePrompt(token_ids, truncated)

    def _beginning(self, text: str) -> str:
        """The text without the end of which nothing is ever shown."""
        return beginning(text, self.passage_tokens, lambda start: len(self._segments.tokenize(self.sanitize(start))))

    def render(self, query: Query, names: Sequence[str], texts: Sequence[str]) -> str:
        """The text of a prompt with these passage texts, including chat markup."""
        example = " > ".join(f"[{name}]" for name in reversed(names[:2]))
        values = {"num": str(len(names)), "query": query.text, "instruction": query.instruction, "example": example}
        passages = [values | {"rank": name, "candidate": text} for name, text in zip(names, texts, strict=True)]
        parts = [(self.template.prefix, self.template.prefix_assistant, values)]
        parts += [(self.template.body, self.template.body_assistant, each) for each in passages]
        turns, user = list[tuple[str, str]](), ""
        for text, answer, fields in parts:
            user += _fill(text, fields)
            if answer:
                turns.append((user, _fill(answer, fields)))
                user = ""
        user += _fill(self.template.suffix, values)
        return render_chat(self._tokenizer, self.template.system_message, user, turns, self._thinks)

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a rendered prompt. BOS tokens inside it are turn marks, as ChatML models have them.

        Raises:
            CheckpointError: it begins with two BOS tokens, and the style does not say so.
        """
        ids, bos = self._segments.tokenize(text), self._tokenizer.bos_token_id
        rest = list(dropwhile(lambda token: token == bos, ids))
        written = max(len(ids) - len(rest), self._adds_bos)
        if written > 1 and self._bos_tokens is None:
            raise CheckpointError(_TWO_BOS)
        return [bos] * (written if self._bos_tokens is None else self._bos_tokens) + rest

    def continuation(self, text: str) -> list[int]:
        """The token ids of a text that follows a prompt, without special tokens."""
        return self._segments.tokenize(text)

    def refuse_reasoning(self) -> None:
        """Raises: CheckpointError if the chat template opens a reasoning, after which no answer can be read."""
        if self.opens_reasoning:
            raise CheckpointError(
                f"the chat template ends with {_REASONING}: the model reasons before it answers, for which there is no "
                "room; use a checkpoint or chat template that answers at once, or `ranker: generation` with "
                "`generation: {thinking_tokens: 4096}`"
            )

    @property
    def opens_reasoning(self) -> bool:
        """True if every prompt ends with the mark that begins a reasoning."""
        return self.prompt_end.rstrip().endswith(_REASONING)

    @cached_property
    def prompt_end(self) -> str:
        """The last characters of every prompt, on which the token ids of the identifiers depend."""
        return self.render(Query("query"), ["A"], ["passage"])[-16:]

    def _make_skeleton(self, text: str, instruction: str, names: tuple[str, ...]) -> _Skeleton:
        """The skeleton for a query; its segments are verified on a prompt of placeholder passages."""
        query, n = Query(text, instruction=instruction), len(names)
        n_tokens = len(self.tokenize(self.render(query, names, [""] * n)))
        parts = self.render(query, names, [_PASSAGE_MARKER] * n).split(_PASSAGE_MARKER)
        contexts = passage_contexts(parts)
        contexts = (*map(self._as_inner_context, contexts[:-1]), *contexts[-1:])
        # Placeholders cannot verify passages that touch each other, because tokens could span two passages.
        separate = len(contexts) == n > 0 and all(context.left and context.right for context in contexts)
        between = self._segments.tokenize_between(parts, contexts) if separate else None
        if between is None:
            return _Skeleton(n_tokens)
        head = self.tokenize(parts[0].removesuffix(contexts[0].space_before))
        skeleton = _Skeleton(n_tokens, contexts, (tuple(head), *between))
        assembled = self._assemble(skeleton, [Passage("", _PLACEHOLDER)] * n)
        expected = self.tokenize(self.render(query, names, [_PLACEHOLDER] * n))
        return skeleton if assembled == expected else _Skeleton(n_tokens)

    def _assemble(self, skeleton: _Skeleton, passages: Sequence[Passage]) -> list[int] | None:
        """The token ids of a prompt from those of its segments; None if a token spans a boundary."""
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

    @cached_property
    def _inner_context(self) -> PassageContext:
        """The context of a passage between two others."""
        parts = self.render(Query(_PLACEHOLDER), ("A", "B", "C"), [_PASSAGE_MARKER] * 3).split(_PASSAGE_MARKER)
        return passage_contexts(parts)[1] if len(parts) == 4 else PassageContext("", "", "", "")

    def _as_inner_context(self, context: PassageContext) -> PassageContext:
        """The inner context if the white space is the same: the token ids do not depend on the identifiers around."""
        inner = self._inner_context
        same = (context.space_before, context.space_after) == (inner.space_before, inner.space_after)
        return inner if same else context

    @cached_property
    def _empty_tokens(self) -> int:
        """The number of tokens of an empty passage, which are those of its white space."""
        return len(self._segments.tokenize_passage("", self._inner_context) or ())

    def _length(self, passage: Passage) -> int:
        """The number of tokens that the passage adds to a prompt in which it was empty."""
        ids = passage.token_ids or self._segments.tokenize_passage(passage.text, self._inner_context)
        return len(self.token_ends(passage.text)) if ids is None else max(0, len(ids) - self._empty_tokens)

    def _truncate(self, passage: Passage, tokens: int) -> Passage:
        """The passage with only the first tokens of its text."""
        ends = self.token_ends(passage.text)
        return Passage(passage.doc_id, passage.text[: ends[tokens - 1]]) if len(ends) > tokens else passage

    def _passage_limit(self, skeleton_tokens: int, lengths: Sequence[int], prompt_tokens: int) -> int:
        """The maximum passage length with which all passages fit; short passages leave their room to long ones."""
        room = prompt_tokens - skeleton_tokens
        lengths = sorted(length + _SLACK_TOKENS for length in lengths)
        for shorter, length in enumerate(lengths):
            share = room // (len(lengths) - shorter)
            if length > share:
                return _check_limit(share - _SLACK_TOKENS, len(lengths), prompt_tokens)
            room -= length
        return max(lengths, default=0)


class SegmentTokenizer:
    """Tokenises prompts and their segments without adding special tokens; those written in a text are read as such.

    Works on a copy of the tokenizer that is configured once, because a tokenizer that one thread configures while
    another uses it raises "Already borrowed".
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = Tokenizer.from_str(cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer.to_str())
        self._backend.encode_special_tokens = False
        self._backend.no_truncation()
        self._backend.no_padding()
        self.tokenize_passage = cached_by_bytes(self._tokenize_passage, _segment_bytes)

    def tokenize(self, text: str) -> list[int]:
        return self._encode([text])[0]

    def token_ends(self, text: str) -> tuple[int, ...]:
        """The end of each token of the text, in characters."""
        return tuple(end for _, end in self._backend.encode(text, add_special_tokens=False).offsets)

    def tokenize_passages(self, texts: Sequence[str], context: PassageContext) -> list[TokenIds | None]:
        """The token ids of each text and its white space in a context; None if a token spans a boundary."""
        anchor = _PLACEHOLDER + context.space_after
        left, anchor_ids, with_right = self._encode([context.left, anchor, anchor + context.right])
        right = with_right[len(anchor_ids) :]
        before, after = context.left + context.space_before, context.space_after + context.right
        return [_strip(ids, left, right) for ids in self._encode([before + text + after for text in texts])]

    def tokenize_between(self, parts: Sequence[str], contexts: Sequence[PassageContext]) -> list[TokenIds] | None:
        """The token ids of all parts but the first, without the white space of passages; None as above."""
        anchors = [_PLACEHOLDER + context.space_after for context in contexts]
        ends = [len(part) - len(context.space_before) for part, context in zip(parts[1:], contexts[1:], strict=False)]
        texts = [
            part[len(context.space_after) : end]
            for part, context, end in zip(parts[1:], contexts, [*ends, None], strict=True)
        ]
        anchor_ids = self._encode(anchors)
        with_anchors = self._encode([anchor + text for anchor, text in zip(anchors, texts, strict=True)])
        stripped = [_strip(ids, anchor, []) for ids, anchor in zip(with_anchors, anchor_ids, strict=True)]
        return None if None in stripped else cast(list[TokenIds], stripped)

    def _tokenize_passage(self, text: str, context: PassageContext) -> TokenIds | None:
        return self.tokenize_passages([text], context)[0]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """In parallel, and without the offsets that a call of the transformers tokenizer computes as well."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def _segment_bytes(ids: Sequence[int] | None, text: str, *_: object) -> int:
    return 4 * len(text) + BYTES_PER_TOKEN * len(ids or ())


def passage_contexts(parts: Sequence[str]) -> tuple[PassageContext, ...]:
    """The contexts of the n passages between the n + 1 parts of a prompt."""
    trimmed = [match.groups() for part in parts if (match := _TRIMMED.fullmatch(part))]
    return tuple(
        PassageContext(left[-1:], before, after, right[:_RIGHT_CHARS])
        for (_, left, before), (after, right, _) in pairwise(trimmed)
    )


def _fill(part: str, values: dict[str, str]) -> str:
    """The template part with its fields replaced in one pass, so that values are never read as fields."""
    return _FIELD.sub(lambda field: values.get(field[1], field[0]), part)


def _may_be_trimmed(passage: Passage) -> bool:
    """True if a chat template that trims the white space of turns could change a turn that ends with the passage."""
    return not passage.text or passage.text.strip() != passage.text


def _strip(ids: list[int], left: list[int], right: list[int]) -> TokenIds | None:
    """The token ids between two known ends; None if the ids do not begin and end with these."""
    end = len(ids) - len(right)
    matches = end >= len(left) and ids[: len(left)] == left and ids[end:] == right
    return tuple(ids[len(left) : end]) if matches else None


def _check_limit(limit: int, n_passages: int, prompt_tokens: int) -> int:
    if limit < _MIN_PASSAGE_TOKENS:
        raise InvalidRequest(
            "query",
            f"query and instruction leave {max(limit, 0)} of the model's {prompt_tokens} tokens for each of the "
            f"{n_passages} passages of a window, at least {_MIN_PASSAGE_TOKENS} are needed; use a shorter query or a "
            "smaller window_size",
            {"limit": str(prompt_tokens)},
        )
    return limit
