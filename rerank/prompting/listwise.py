"""Renders windows of passages as listwise prompts, sanitized, and truncated to fit the model's context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError, InvalidRequest
from rerank.prompting.sanitize import Sanitizer
from rerank.prompting.style import first_words
from rerank.prompting.templates import Template
from rerank.prompting.tokens import SLACK_TOKENS, PromptTokenizer, beginning, first_tokens, passage_limit
from rerank.types import Passage, PreparedTexts, Query, TextTokens, Window

_FIELD = re.compile(r"\{(num|query|instruction|example|rank|candidate)\}")
_NO_CHAT = (
    "the tokenizer has no chat template, so the prompt is plain text; a model that was trained on conversations "
    "needs a profile, or a chat_template in its tokenizer_config.json"
)
_TWO_BOS = (
    "the prompt begins with two BOS tokens; change the chat template to write at most one, or name a profile for a "
    "model that was trained so"
)


@dataclass(frozen=True, slots=True)
class ListwisePrompt:
    """The token ids of a prompt, and the positions of the truncated passages in the window, from 0."""

    token_ids: list[int]
    truncated: tuple[int, ...]


class ListwiseRenderer:
    """Renders windows as prompts for one tokenizer and template.

    Args:
        template: the prompt's words and style.
        tokenizer: the model's tokenizer. It gets or loses a chat template if the template says so.
        context_tokens: largest number of tokens of a prompt and its answer together.
        answer_tokens: number of tokens that every prompt leaves free for the answer.
        passage_tokens: largest number of tokens shown per passage, as in training; 0: only the context is the limit.
        thinks: whether the model reasons before it answers.
        query_tokens: largest number of tokens of a query without its instruction; 0: half of a prompt is the limit.

    Attributes:
        passage_tokens: largest number of tokens shown per passage; the argument, or the length of the context.
        warning: why the prompts may differ from those in training; empty if no difference is known.
    """

    def __init__(
        self,
        template: Template,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        answer_tokens: int,
        passage_tokens: int = 0,
        thinks: bool = False,
        query_tokens: int = 0,
    ) -> None:
        self.template = template
        self._thinks = thinks
        self._tokenizer = tokenizer
        if not template.chat_markup:
            tokenizer.chat_template = None
        elif template.style.chat_template and not tokenizer.chat_template:
            tokenizer.chat_template = template.style.chat_template
        self.warning = _NO_CHAT if template.system_message and not tokenizer.chat_template else ""
        self._style = template.style
        self._changes_passages = self._style.changes_passages
        self._prompt_tokens = context_tokens - answer_tokens
        most_tokens = min(self._prompt_tokens, self._style.prompt_tokens or self._prompt_tokens)
        self._max_query_tokens = most_tokens // (2 * template.query_repeats)
        self._query_tokens = query_tokens or self._max_query_tokens
        self.passage_tokens = min(passage_tokens or context_tokens, context_tokens)
        parts = (template.system_message, template.prefix, template.suffix)
        self.sanitize = Sanitizer(tokenizer, parts, self._style.guards)
        self.prompt_tokenizer = PromptTokenizer(tokenizer)
        self.token_ends = self.prompt_tokenizer.ends
        self._bos_tokens = template.style.bos_tokens if tokenizer.bos_token_id is not None else None
        self._adds_bos = tokenizer("a", verbose=False)["input_ids"][0] == tokenizer.bos_token_id
        self._empty_tokens = lru_cache(maxsize=64)(self._count_empty_tokens)  # windows of a request share the count
        self.order_tokens = lru_cache(maxsize=128)(self._count_order_tokens)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Sanitizes the texts, cuts off the ends that no prompt shows, and tokenizes the texts."""
        query = self._fitting_query(query)
        shown = [self._shown(passage) for passage in passages]
        texts = [*dict.fromkeys(shown)]
        tokens = dict(zip(texts, self.prompt_tokenizer.tokens(texts), strict=True))
        of_passages = zip(passages, shown, strict=True)
        prepared = [replace(passage, text=text, tokens=tokens[text]) for passage, text in of_passages]
        return PreparedTexts(query, tuple(prepared))

    def _fitting_query(self, query: Query) -> Query:
        """Sanitizes a query, and cuts it so that half of the prompt remains for the passages.

        The other half is for the query and its instruction.
        """
        text, instruction = map(self.query_text, (query.text, query.instruction))
        most = min(self._query_tokens, self._max_query_tokens - len(self.token_ends(instruction)))
        cut = first_tokens(text, max(1, most), self.token_ends)
        return replace(query, text=cut, instruction=instruction, is_truncated=query.is_truncated or cut != text)

    def prompt(self, window: Window, names: Sequence[str], answer_tokens: int = 0) -> ListwisePrompt:
        """Returns the prompt of a window whose query and passages are sanitized.

        Args:
            names: identifiers in the order of the passages; at least one for each passage.
            answer_tokens: number of tokens that the prompt leaves free for the answer, in addition to those that every
                prompt of this renderer leaves free.

        Raises:
            InvalidRequest: the query leaves too little room for the passages.
        """
        names, room = tuple(names[: len(window.passages)]), self._prompt_tokens - answer_tokens
        if self._style.prompt_tokens:
            room = min(room, self._style.prompt_tokens - self.order_tokens(names))
        tokens = [self.tokens_of(passage) for passage in window.passages]
        if self._style.shorten == "words":
            return self._cut_to_words(window, names, tokens, room)
        empty_tokens = self._empty_tokens(window.query.text, window.query.instruction, names)
        limit = self._passage_limit(tokens, room, empty_tokens)
        return self._rendered(
            window,
            names,
            tokens,
            [
                passage.text if len(of_text.ids) <= limit else passage.text[: of_text.ends[limit - 1]]
                for passage, of_text in zip(window.passages, tokens, strict=True)
            ],
        )

    def _cut_to_words(
        self, window: Window, names: tuple[str, ...], tokens: Sequence[TextTokens], room: int
    ) -> ListwisePrompt:
        """Returns a prompt with the same number of words of each passage.

        The number begins with the style's `max_words` and falls until the prompt fits. As in RankLLM, each step
        subtracts a quarter of the excess tokens per passage, at least 1.

        Raises:
            InvalidRequest: the prompt is too long even with one word of each passage.
        """
        n = len(window.passages)
        words = self._style.max_words
        while words > 0:
            texts = [first_words(passage.text, words) for passage in window.passages]
            prompt = self._rendered(window, names, tokens, texts)
            too_many = len(prompt.token_ids) - room
            if too_many <= 0:
                return prompt
            words -= max(1, too_many // (4 * n))
        raise InvalidRequest(
            "query",
            f"query and instruction leave none of the prompt's {room} tokens for a word of each of the {n} passages of "
            "a window; use a shorter query or a smaller window_size",
            {"limit": str(room)},
        )

    def _rendered(
        self, window: Window, names: tuple[str, ...], tokens: Sequence[TextTokens], texts: Sequence[str]
    ) -> ListwisePrompt:
        """Returns the prompt that shows these texts, which are the passages' texts or beginnings of them."""
        rendered = self.render(window.query, names, texts)
        ids = self.prompt_tokenizer.ids_of_prompt(rendered, window.passages, tokens, texts)
        pairs = enumerate(zip(window.passages, texts, strict=True))
        truncated = tuple(index for index, (passage, text) in pairs if len(text) < len(passage.text))
        return ListwisePrompt(self._with_bos(ids), truncated)

    def tokens_of(self, passage: Passage) -> TextTokens:
        """Returns the tokens of a sanitized passage."""
        return passage.tokens or self.prompt_tokenizer.tokens([passage.text])[0]

    def query_text(self, text: str) -> str:
        """Returns a query, or its instruction, as prompts show it."""
        return self.sanitize(self._style.query_text(text))

    def _shown(self, passage: Passage) -> str:
        """Returns the text of a passage as prompts show it, without the end that no prompt shows."""

        def shown(start: str) -> str:
            return self.sanitize(self._style.passage_text(start, passage.title) if self._changes_passages else start)

        start = beginning(passage.text, self.passage_tokens, lambda text: len(self.prompt_tokenizer.ids(shown(text))))
        return shown(start)

    def render(self, query: Query, names: Sequence[str], texts: Sequence[str]) -> str:
        """Returns the text of a prompt with these passage texts, including chat markup."""
        template, example = self.template, " > ".join(map("[{}]".format, reversed(names[:2])))
        instruction = template.instruction_text(query.instruction)
        values = {"num": str(len(names)), "query": query.text, "instruction": instruction, "example": example}
        parts = [(template.prefix, template.prefix_assistant, values)]
        for name, text in zip(names, texts, strict=True):
            parts.append((template.body, template.body_assistant, values | {"rank": name, "candidate": text}))
        turns, user = list[tuple[str, str]](), ""
        for text, answer, fields in parts:
            user += fill_fields(text, fields)
            if answer:
                turns.append((user, fill_fields(answer, fields)))
                user = ""
        user += fill_fields(template.suffix, values)
        system = template.system_message
        if self._tokenizer.chat_template:
            return render_chat(self._tokenizer, system, user, turns, self._thinks)
        return "\n".join(filter(None, (system, *chain.from_iterable(turns), user)))

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of a rendered prompt.

        Raises:
            CheckpointError: the prompt begins with two BOS tokens, and the style does not set their number.
        """
        return self._with_bos(self.prompt_tokenizer.ids(text))

    def _with_bos(self, ids: Sequence[int]) -> list[int]:
        """Returns the token ids with the right number of BOS tokens at the beginning.

        BOS tokens after the beginning stay, because some chat templates, such as ChatML, mark turns with them.
        """
        bos = self._tokenizer.bos_token_id
        begins = 0
        while begins < len(ids) and ids[begins] == bos:
            begins += 1
        written = max(begins, self._adds_bos)
        if written > 1 and self._bos_tokens is None:
            raise CheckpointError(_TWO_BOS)
        return [bos] * (written if self._bos_tokens is None else self._bos_tokens) + [*ids[begins:]]

    @property
    def opens_reasoning(self) -> bool:
        """True if every prompt ends with the mark that begins a reasoning."""
        return self.prompt_end.rstrip().endswith("<think>")

    @cached_property
    def prompt_end(self) -> str:
        """The last characters of every prompt: the token ids of the identifiers depend on them."""
        return self.render(Query("query"), ["A"], ["passage"])[-16:]

    def _count_empty_tokens(self, text: str, instruction: str, names: tuple[str, ...]) -> int:
        """Returns the number of tokens of a prompt whose passages are empty."""
        return len(self.tokenize(self.render(Query(text, instruction=instruction), names, [""] * len(names))))

    def _count_order_tokens(self, names: tuple[str, ...]) -> int:
        """Returns the number of tokens of an order of these names, as RankLLM counts: with a BOS token, minus one."""
        order = " > ".join(map("[{}]".format, names))
        return len(self.prompt_tokenizer.ids(order)) + self._adds_bos - 1

    def _passage_limit(self, tokens: Sequence[TextTokens], prompt_tokens: int, empty_tokens: int) -> int:
        """Returns the largest number of tokens per passage at which all passages fit, `passage_tokens` at most."""
        room = prompt_tokens - empty_tokens
        lengths = [min(len(of_text.ids), self.passage_tokens) for of_text in tokens]
        if sum(lengths) + SLACK_TOKENS * len(lengths) <= max(0, room):
            return self.passage_tokens
        return min(self.passage_tokens, passage_limit(lengths, room, prompt_tokens))


def fill_fields(part: str, values: dict[str, str]) -> str:
    """Returns the template part with its fields replaced in one pass, so that values are never read as fields."""
    return _FIELD.sub(lambda field: values.get(field[1], field[0]), part)


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    system: str,
    user: str,
    turns: Sequence[tuple[str, str]] = (),
    thinks: bool = False,
) -> str:
    """Returns a system message and the user's turn in the model's chat markup, up to where the answer begins.

    Args:
        tokenizer: has a chat template.
        turns: earlier turns, each with the text of the user and of the assistant.
        thinks: whether the model reasons before it answers, if its chat template offers the choice.
    """
    said = [(role, text) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)]
    said.append(("user", user))
    try:
        return _apply_chat_template(tokenizer, [("system", system), *said] if system else said, thinks)
    except jinja2.TemplateError:  # the template has no system role
        return _apply_chat_template(tokenizer, [("user", f"{system}\n{said[0][1]}"), *said[1:]], thinks)


def _apply_chat_template(tokenizer: PreTrainedTokenizerBase, said: Sequence[tuple[str, str]], thinks: bool) -> str:
    messages = [{"role": role, "content": text} for role, text in said]
    options: dict[str, Any] = {"enable_thinking": thinks}  # without it, Qwen3 begins with its reasoning
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return str(text)
