"""Describes what the prompts of a published model have besides the words of its template."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass

from rerank.errors import ConfigError
from rerank.util.combining import stream_safe

_TITLE_FIELD = re.compile(r"\{(title|text)\}")


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """Settings by which a published model's prompts are put together.

    Attributes:
        bos_tokens: number of BOS tokens at the beginning; None: as the chat template or the tokenizer writes it.
        chat_template: the conversation in Jinja, for a tokenizer that has no chat template.
        ftfy: repair the encoding of passages with the package ftfy.
        max_words: number of words to which passages are cut; 0: all.
        title: form of a passage that has a title, with the fields `{title}` and `{text}`; empty: the title stands
            before the text.

    Raises:
        ConfigError: `ftfy` is set and the package is not installed, or `title` lacks one of its fields.
    """

    bos_tokens: int | None = None
    chat_template: str = ""
    ftfy: bool = False
    max_words: int = 0
    title: str = ""

    def __post_init__(self) -> None:
        if self.ftfy and importlib.util.find_spec("ftfy") is None:
            raise ConfigError(
                "this model's passages are repaired with ftfy, which is not installed; pip install ftfy (extra "
                "`published`), or set `prompt: {ftfy: false}` and get other figures than the published ones"
            )
        if self.title and set(_TITLE_FIELD.findall(self.title)) != {"title", "text"}:
            raise ConfigError(
                f"title {self.title!r} of the prompt does not show title and text; use both fields, as in "
                "'Title: {title} Content: {text}'"
            )

    @property
    def changes_passages(self) -> bool:
        return self.ftfy or self.max_words > 0 or bool(self.title)

    def passage_text(self, text: str, title: str = "") -> str:
        """Returns the text of a passage as the model was trained on it, with single spaces between words.

        Args:
            title: the title, with which `text` begins; empty for a passage without one.
        """
        if self.title and title:
            fields = {"title": title, "text": text.removeprefix(title)}
            text = _TITLE_FIELD.sub(lambda field: fields[field[1]], self.title)
        if self.ftfy:
            import ftfy

            text = ftfy.fix_text(stream_safe(text.strip()))
        words = text.split()
        return " ".join(words[: self.max_words] if self.max_words else words)
