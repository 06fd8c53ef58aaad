"""A window as token ids: template, chat markup, and passages cut to what the model can read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError, InvalidRequest
from rerank.prompting.sanitize import Sanitizer
from rerank.prompting.segments import ANY, Ids, Place, SegmentTokenizer, places_in
from rerank.prompting.templates import Template
from rerank.types import Passage, Prepared, Query, Window

_FIELD = re.compile(r"\{(num|query|instruction|example|rank|candidate)\}")
#: Fewer tokens than these of each passage are not worth reading.
_LEAST_PASSAGE_TOKENS = 8
#: A cut text may take a token or two more than it did inside the whole.
_SLACK_TOKENS = 2
#: Stands where a passage will stand, when a prompt is rendered to be taken apart: a character that nobody may use.
_SEAM = "\ufdd0"


@dataclass(frozen=True, slots=True)
class ListwisePrompt:
    """The token ids of a prompt, and which places of the window were cut."""

    token_ids: list[int]
    truncated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Frame:
    """A prompt without its n passages.

    Attributes:
        empty_tokens: how long the prompt is when all passages are empty.
        places: of the passages.
        pieces: token ids before, between and behind the passages, n + 1; None where these have none of their own.
    """

    empty_tokens: int
    places: tuple[Place, ...] = ()
    pieces: tuple[Ids, ...] | None = None


class ListwiseRenderer:
    """Renders windows for one tokenizer and template.

    Args:
        context_tokens: what prompt and answer may take together.
        answer_tokens: what is kept free for the answer.
        passage_tokens: the most tokens of a passage that are shown, as in training; 0: as many as fit.
    """

    def __init__(
        self,
        template: Template,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        answer_tokens: int,
        passage_tokens: int = 0,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._prompt_tokens = context_tokens - answer_tokens
        self._passage_tokens = passage_tokens or context_tokens
        self.neutral = Sanitizer(tokenizer, (template.system_message, template.prefix, template.suffix))
        self._pieces = SegmentTokenizer(tokenizer)
        self._adds_bos = tokenizer("a", verbose=False)["input_ids"][0] == tokenizer.bos_token_id
        self._frame = lru_cache(maxsize=64)(self._make_frame)  # windows of a request share theirs
        self._token_ends = lru_cache(maxsize=4096)(self._pieces.ends)  # a passage is read in several windows
        self._whole_ids = lru_cache(maxsize=128)(self.token_ids)  # asked for to count them, and again to read them

    def harmless(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Query and passages as neutral text, once a request."""
        neutral = self.neutral
        asked = replace(query, text=neutral(query.text), instruction=neutral(query.instruction))
        return Prepared(asked, tuple(replace(passage, text=neutral(passage.text)) for passage in passages))

    def prepared(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Neutral query and passages, these with the token ids that they have between two others."""
        harmless = self.harmless(query, passages)
        texts = [passage.text for passage in harmless.passages]
        token_ids = self._pieces.passages(texts, self._usual_place)
        with_ids = (replace(passage, token_ids=ids) for passage, ids in zip(harmless.passages, token_ids, strict=True))
        return replace(harmless, passages=tuple(with_ids))

    def prompt(self, window: Window, names: Sequence[str], answer_tokens: int = 0) -> ListwisePrompt:
        """The prompt of a window whose query and passages are neutral text already.

        Args:
            names: identifiers in order, as many as there are passages or more.
            answer_tokens: what is kept free for the answer to this window, beyond what always is.

        Raises:
            InvalidRequest: the query leaves too little room for the passages.
        """
        names = tuple(names[: len(window.passages)])
        frame = self._frame(window.query.text, window.query.instruction, names)
        lengths = [self._length(passage) for passage in window.passages]
        lengths_shown = [min(length, self._passage_tokens) for length in lengths]
        limit = self._passage_limit(frame.empty_tokens, lengths_shown, self._prompt_tokens - answer_tokens)
        limit = min(limit, self._passage_tokens)
        passages = [
            passage if length <= limit else self._cut(passage, limit)
            for passage, length in zip(window.passages, lengths, strict=True)
        ]
        truncated = (place for place, passage in enumerate(passages) if passage is not window.passages[place])
        ids = self._joined(frame, passages)
        if ids is None:
            ids = self._whole_ids(self.text(window.query, names, [passage.text for passage in passages]))
        return ListwisePrompt(list(ids), tuple(truncated))

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
        ids, bos = self._pieces.ids(text), self._tokenizer.bos_token_id
        if bos is None:
            return ids
        if ids[:1] != [bos] and self._adds_bos:
            ids = [bos, *ids]
        if ids.count(bos) > 1:
            raise CheckpointError(
                f"the prompt holds {ids.count(bos)} BOS tokens; the chat template must write at most one"
            )
        return ids

    def _make_frame(self, text: str, instruction: str, names: tuple[str, ...]) -> _Frame:
        """The frame for a query; its pieces are checked by a prompt of any passages."""
        query, n = Query(text, instruction=instruction), len(names)
        empty_tokens = len(self.token_ids(self.text(query, names, [""] * n)))
        parts = self.text(query, names, [_SEAM] * n).split(_SEAM)
        places = tuple(map(self._usual_if_alike, places_in(parts)[:-1])) + places_in(parts)[-1:]
        # Of passages that touch, no check of the one would show what it does to the other.
        apart = len(places) == n > 0 and all(place.left and place.right for place in places)
        between = self._pieces.between(parts, places) if apart else None
        if between is None:
            return _Frame(empty_tokens)
        head = self.token_ids(parts[0].removesuffix(places[0].before))
        frame = _Frame(empty_tokens, places, (tuple(head), *between))
        joined, whole = self._joined(frame, [Passage("", ANY)] * n), self.text(query, names, [ANY] * n)
        return frame if joined == self.token_ids(whole) else _Frame(empty_tokens)

    def _joined(self, frame: _Frame, passages: Sequence[Passage]) -> list[int] | None:
        """The prompt's ids, piece after piece; None if some piece has none."""
        if frame.pieces is None:
            return None
        ids = list(frame.pieces[0])
        for passage, place, behind in zip(passages, frame.places, frame.pieces[1:], strict=True):
            known = passage.token_ids if place == self._usual_place else None
            own = known or self._pieces.passage(passage.text, place)
            if own is None:
                return None
            ids += own
            ids += behind
        return ids

    @cached_property
    def _usual_place(self) -> Place:
        """Where a passage stands that has others before and behind it."""
        parts = self.text(Query(ANY), ("A", "B", "C"), [_SEAM] * 3).split(_SEAM)
        return places_in(parts)[1] if len(parts) == 4 else Place("", "", "", "")

    def _usual_if_alike(self, place: Place) -> Place:
        """Identifiers differ from place to place, and no passage's tokens with them."""
        usual = self._usual_place
        return usual if (place.before, place.after) == (usual.before, usual.after) else place

    @cached_property
    def _empty_tokens(self) -> int:
        """What an empty passage takes in its place."""
        return len(self._pieces.passage("", self._usual_place) or ())

    def _length(self, passage: Passage) -> int:
        """How many tokens longer the passage makes a prompt in which it was empty."""
        ids = passage.token_ids or self._pieces.passage(passage.text, self._usual_place)
        return len(self._token_ends(passage.text)) if ids is None else max(0, len(ids) - self._empty_tokens)

    def _cut(self, passage: Passage, tokens: int) -> Passage:
        """The passage's beginning, as far as so many of its tokens reach."""
        ends = self._token_ends(passage.text)
        return Passage(passage.doc_id, passage.text[: ends[tokens - 1]]) if len(ends) > tokens else passage

    def _passage_limit(self, empty_tokens: int, lengths: Sequence[int], prompt_tokens: int) -> int:
        """The most tokens that each passage may have, so that all of them fit: short ones leave room to long ones."""
        room = prompt_tokens - empty_tokens
        lengths = sorted(length + _SLACK_TOKENS for length in lengths)
        for shorter, length in enumerate(lengths):
            share = room // (len(lengths) - shorter)
            if length > share:
                return self._checked_limit(share - _SLACK_TOKENS, len(lengths), prompt_tokens)
            room -= length
        return max(lengths, default=0)

    def _checked_limit(self, limit: int, passages: int, prompt_tokens: int) -> int:
        if limit < _LEAST_PASSAGE_TOKENS:
            raise InvalidRequest(
                "query",
                f"query and instruction leave {max(limit, 0)} tokens for each of the {passages} passages of a window, "
                f"of {prompt_tokens} that the model reads; use a shorter query or a smaller window_size",
                {"limit": str(prompt_tokens)},
            )
        return limit


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
