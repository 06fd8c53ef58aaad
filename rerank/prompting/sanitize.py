"""Text from outside is data: a passage must gain nothing by imitating the prompt's markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase

#: What names a passage: one to three letters or digits between brackets.
_IDENTIFIER = re.compile(r"\[\s*([A-Za-z]|\d{1,3})\s*\]")
#: What marks a turn in a chat: <|user|>, </s>, [/INST], <start_of_turn>, whether or not the tokenizer knows it.
_CHAT_MARK = re.compile(r"<\|?/?[A-Za-z_]{1,40}\|?>|\[/?[A-Z_]{2,20}\]")
#: What opens a line of a template: "Search Query:".
_LABEL = re.compile(r"^\s*([A-Z][A-Za-z ]{1,40}):", re.MULTILINE)
_WHITE_SPACE = re.compile(r"\s+")


class Sanitizer:
    """Makes passages and queries harmless for one model and template.

    Line breaks become blanks, so that nothing opens a line of its own; identifiers lose their brackets; special tokens
    and chat marks are broken by a blank behind their first character; labels of the template lose their colon.

    Args:
        tokenizer: whose special tokens are broken.
        template_texts: the fixed parts of the template, whose labels are broken.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_texts: Iterable[str]) -> None:
        marks = [re.escape(token) for token in tokenizer.all_special_tokens if len(token) > 1]
        marks += [re.escape(str(token)) for token in tokenizer.added_tokens_encoder if len(str(token)) > 1]
        self._marks = re.compile("|".join([*sorted(set(marks), key=len, reverse=True), _CHAT_MARK.pattern]))
        labels = sorted({label for text in template_texts for label in _LABEL.findall(text)})
        self._labels = re.compile(rf"({'|'.join(map(re.escape, labels))})\s*:", re.IGNORECASE) if labels else None

    def __call__(self, text: str) -> str:
        text = _WHITE_SPACE.sub(" ", text).strip()
        text = _IDENTIFIER.sub(r"(\1)", text)
        if self._labels is not None:
            text = self._labels.sub(r"\1 -", text)
        return self._marks.sub(lambda mark: f"{mark[0][0]} {mark[0][1:]}", text)
