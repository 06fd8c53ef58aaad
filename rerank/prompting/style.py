"""The style of a prompt: settings that change its texts and limits, in addition to the words of the template.

The programs of publishers process texts in different ways. A profile states the style of the program that measured the
published figures, so that the same checkpoint gives the same order here.
"""

from __future__ import annotations

import importlib.util
import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rerank.util.combining import stream_safe

#: The beginning of a passage whose title is empty.
_EMPTY_TITLE = "Title: Content: "
#: A number in brackets, such as "[12]".
_NUMBERS = re.compile(r"\[(\d+)\]")
#: A word in brackets. The pattern is that of FIRST's code, whose range A-z includes the characters between "Z" and "a".
_WORDS = re.compile(r"\[([A-z]+)\]")

#: A number of tokens or words.
Tokens = Annotated[int, Field(ge=0, le=10_000_000, strict=True)]


class Guard(StrEnum):
    """A defence against texts that imitate the prompt, see `rerank.prompting.sanitize.Sanitizer`.

    Guards also change harmless texts, such as the "[1]" of a citation.
    """

    #: White space becomes single spaces, so that no text begins a line.
    WHITE_SPACE = "white_space"
    #: "[A]" and "[12]" get parentheses.
    IDENTIFIERS = "identifiers"
    #: "Search Query:" gets a dash, if the template has this label.
    LABELS = "labels"
    #: Special tokens of the tokenizer, and the markup that its chat template writes, are divided by a space.
    MARKUP = "markup"
    #: The chat markup of other public models is divided in the same way.
    FOREIGN_MARKUP = "foreign_markup"


class PromptStyle(BaseModel):
    """Settings of a model's prompts, in addition to the words of its template.

    Attributes:
        bos_tokens: number of BOS tokens at the beginning. Default: the number that chat template or tokenizer write.
        chat_template: a chat template in Jinja, for a tokenizer that has none. Default: none.
        prompt_tokens: largest number of tokens of a prompt together with the order that the model would write for its
            passages; 0: the model's context is the limit. Default: 0.
        shorten: how passages are shortened until the prompt fits: `tokens` cuts the longest ones to an equal number of
            tokens; `words` cuts all to an equal number of words, lowered in the steps of RankLLM. Default: tokens.
        max_words: largest number of words of a passage; 0: all. Default: 0.
        repair: which texts the package ftfy repairs: `none`; `prompt`, texts as parts of the prompt; `passages`, each
            passage alone, with its HTML entities, and then the prompt. Default: none.
        titles: how a title precedes its text: `plain`, as in "D text"; `sentence`, as in "D. text", and the empty title
            "Title: Content: " is removed; `labelled`, as in "Title: D Content: text". Default: plain.
        brackets: which brackets become parentheses, as in the publisher's program: `kept`, none; `numbers`, "[12]" in
            query and passages; `words`, "[abc]" in passages. Default: kept.
        guards: the defences against texts that imitate the prompt, see Guard. Default: all.
        blank_passages: `last`, no model reads passages without a text, and they come last; `read`, they are in the
            prompt. Default: last.
        order_tokens: `free`, the model ends a generated order itself, with a few tokens to spare; `exact`, it writes
            exactly the number of tokens that a full order has. Default: free.
        encoder_tokens: largest number of tokens that the encoder of PE-Rank reads of a passage or query, special tokens
            included; 0: the encoder's own limit. Default: 0.
        encoder_text: which text of a passage E2Rank encodes: `sent`, the text of the request; `shown`, the text with
            the words and spaces that the prompt shows. Default: sent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bos_tokens: Annotated[int, Field(ge=0, le=2, strict=True)] | None = None
    chat_template: str = ""
    prompt_tokens: Tokens = 0
    shorten: Literal["tokens", "words"] = "tokens"
    max_words: Tokens = 0
    repair: Literal["none", "prompt", "passages"] = "none"
    titles: Literal["plain", "sentence", "labelled"] = "plain"
    brackets: Literal["kept", "numbers", "words"] = "kept"
    guards: tuple[Guard, ...] = tuple(Guard)
    blank_passages: Literal["last", "read"] = "last"
    order_tokens: Literal["free", "exact"] = "free"
    encoder_tokens: Tokens = 0
    encoder_text: Literal["sent", "shown"] = "sent"

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.shorten == "words" and not self.max_words:
            raise ValueError("shorten: words needs max_words, from which it starts; set it, such as to RankLLM's 300")
        if self.repair != "none" and importlib.util.find_spec("ftfy") is None:
            raise ValueError(
                "texts of this model are repaired with ftfy, which is not installed; pip install ftfy (extra "
                "`published`)"
            )
        return self

    @property
    def stated(self) -> dict[str, object]:
        """The settings that differ from their defaults, as values of YAML and JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def __str__(self) -> str:
        """The settings that differ from their defaults, such as "guards markup, brackets numbers"; or empty."""
        stated = self.stated
        if self.chat_template:
            stated["chat_template"] = "own"
        if "guards" in stated:
            stated["guards"] = "+".join(self.guards) or "none"
        return ", ".join(f"{key} {value}" for key, value in stated.items())

    @property
    def changes_passages(self) -> bool:
        """True if the style changes the texts of passages in prompts."""
        is_plain = self.repair == "none" and self.titles == "plain" and self.brackets == "kept"
        return not is_plain or self.max_words > 0

    def cuts(self, text: str) -> bool:
        """Returns True if a passage has more words than prompts show."""
        return 0 < self.max_words < len(text.split(maxsplit=self.max_words))

    def query_text(self, text: str) -> str:
        """Returns a query, or its instruction, as the prompt shows it."""
        if self.brackets == "numbers":
            text = _NUMBERS.sub(r"(\1)", text)
        return text if self.repair == "none" else _repaired(text, has_html=False)

    def passage_text(self, text: str, title: str = "") -> str:
        """Returns the text of a passage as the prompt shows it, with single spaces between words.

        With `shorten: words`, a cut text keeps one word more than `max_words`, so that the renderer can see the cut.

        Args:
            title: the title at the start of `text`; empty for a passage without one.
        """
        if title and self.titles == "labelled":
            text = f"Title: {title} Content: {text.removeprefix(title)}"
        elif self.titles == "sentence":
            text = f"{title}. {text.removeprefix(title)}" if title else text
            text = text.replace(_EMPTY_TITLE, "")
        text = text.strip()
        if self.repair == "passages":
            text = _repaired(text, has_html=True)
        words, most = text.split(), self.max_words
        text = " ".join(words[: most + (self.shorten == "words")] if most else words)
        if self.brackets != "kept":
            text = (_NUMBERS if self.brackets == "numbers" else _WORDS).sub(r"(\1)", text)
        return _repaired(text, has_html=False) if self.repair == "prompt" else text


def _repaired(text: str, has_html: bool) -> str:
    """Returns the text with its encoding and quotes repaired by ftfy, and with `has_html` its HTML entities decoded."""
    import ftfy

    return str(ftfy.fix_text(stream_safe(text), unescape_html="auto" if has_html else False))


def first_words(text: str, words: int) -> str:
    """Returns the first `words` words of a text whose words have single spaces between them."""
    end = -1
    for _ in range(words):
        end = text.find(" ", end + 1)
        if end < 0:
            return text
    return text[: max(0, end)]


#: The settings that apply to every prompt that shows the texts of passages.
TEXT_KEYS = frozenset(PromptStyle.model_fields) - {"order_tokens", "encoder_tokens", "encoder_text"}
