"""Removes from callers' texts everything that a model could read as markup of its prompt."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable

from ahocorasick_rs import AhoCorasick, MatchKind
from transformers import PreTrainedTokenizerBase

from rerank.prompting.style import Guard
from rerank.util.combining import nfc, stream_safe

#: A text in brackets, or in characters that Unicode's compatibility normalisation turns into "[" and "]".
_BRACKETED = re.compile(r"[\[\uFE47\uFF3B]([^\[\]\uFE47\uFE48\uFF3B\uFF3D]*)[\]\uFE48\uFF3D]")
#: A passage's identifier without its brackets: a letter or up to five digits.
_IDENTIFIER = re.compile(r"\s*([A-Za-z]|\d{1,5})\s*")
#: Categories of the characters that tokenizers drop: accents, control and invisible format characters.
_DROPPED = {"Mn", "Cc", "Cf"}
#: Chat markup of public models, for any tokenizer. It has no pattern for texts such as <p> and [MUSIC].
_CHAT_MARKUP = (
    r"<\|[A-Za-z_]{1,40}\|>|</?(?:s|think)>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|<</?SYS>>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|CLS|SEP|PAD|UNK|MASK)\]"
)
#: An added token that is a word of a domain's vocabulary: it has a letter, and no character of markup.
_WORD = re.compile(r"(?=.*[^\W\d_])[^<>\[\]{}|#:\n]+")
#: A label at the start of a template's line, such as "Search Query:".
_LABEL = re.compile(r"^\s*([A-Z][A-Za-z ]{1,40}):", re.MULTILINE)


class Sanitizer:
    """Removes from a text what a model could read as markup of the prompt.

    Texts get the normal form NFC. White space, line breaks included, becomes single spaces, so that no text starts a
    line; identifiers, and what tokenizers normalise to them, get parentheses instead of brackets; special tokens and
    chat markup get a space after their first character; labels of the template get a dash instead of their colon.
    Sanitizing a sanitized text changes nothing.

    Args:
        tokenizer: the tokenizer whose special tokens are divided, see `markup_divider`.
        template_texts: the parts of the template, whose labels lose their colons.
        guards: the changes to make.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_texts: Iterable[str],
        guards: Collection[Guard] = tuple(Guard),
    ) -> None:
        self._joins_white_space = Guard.WHITE_SPACE in guards
        self._replaces_identifiers = Guard.IDENTIFIERS in guards
        labels = sorted({label for text in template_texts for label in _LABEL.findall(text) if Guard.LABELS in guards})
        self._labels = re.compile(rf"({'|'.join(map(re.escape, labels))})\s*:", re.IGNORECASE) if labels else None
        patterns = list[str]()
        if Guard.FOREIGN_MARKUP in guards:
            patterns.append(_CHAT_MARKUP)
        elif Guard.MARKUP in guards:
            patterns += map(re.escape, sorted({*re.findall(_CHAT_MARKUP, str(tokenizer.chat_template or ""))}))
        self._divide_markup = markup_divider(tokenizer if Guard.MARKUP in guards else None, *patterns)

    def __call__(self, text: str) -> str:
        text = nfc(text)
        if self._joins_white_space:
            text = " ".join(text.split())
        if self._replaces_identifiers:
            text = _BRACKETED.sub(_without_identifier, text)
        if self._labels is not None and ":" in text:
            text = self._labels.sub(r"\1 -", text)
        return self._divide_markup(text)


def _without_identifier(match: re.Match[str]) -> str:
    """Returns the bracketed text, but in parentheses if a tokenizer could normalise it to an identifier."""
    text = match[1]
    if text.isascii() and len(text) > 5:  # " 123 "
        return match[0]
    folded = "".join(
        c for c in unicodedata.normalize("NFKD", stream_safe(text)) if unicodedata.category(c) not in _DROPPED
    )
    return f"({text.strip()})" if _IDENTIFIER.fullmatch(folded) else match[0]


def markup_divider(tokenizer: PreTrainedTokenizerBase | None, *patterns: str) -> Callable[[str], str]:
    """Returns a function that puts a space after the first character of each special token of a text.

    The tokenizer then reads the token as text. Added tokens that are not special, such as <think> of Qwen3, are
    divided, too, unless they are words of a domain's vocabulary or white space.

    Args:
        tokenizer: the tokenizer whose tokens are divided; None: only matches of the patterns are divided.
        patterns: regular expressions of further markup that is divided in the same way.
    """
    tokens = set[str]()
    if tokenizer is not None:
        added = tokenizer.added_tokens_decoder.values()
        tokens = {str(token) for token in added if token.special or not _WORD.fullmatch(str(token))}
        tokens |= {*tokenizer.all_special_tokens}
    # An automaton, because an alternation tries each of Gemma's 6,000 added tokens at every "<" of a text.
    markup_tokens = [token for token in tokens if len(token.strip()) > 1]
    automaton = AhoCorasick(markup_tokens, matchkind=MatchKind.LeftmostLongest)
    markup = re.compile("|".join(patterns) or r"(?!)")

    def divided(text: str) -> str:
        parts, start = list[str](), 0
        for _, found, _ in automaton.find_matches_as_indexes(text):
            parts.append(text[start : found + 1])
            start = found + 1
        text = " ".join([*parts, text[start:]])
        return markup.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    return divided
