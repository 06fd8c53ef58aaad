"""Describes what the prompts of a published model have in addition to the words of its template."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from rerank.errors import ConfigError
from rerank.util.combining import stream_safe

#: RankLLM cuts passages to this many words.
_RANK_LLM_WORDS = 300


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """Settings of a published model's prompts that its template's words do not state.

    Attributes:
        bos_tokens: number of BOS tokens at the beginning; None: as the chat template or the tokenizer writes it.
        chat_template: the conversation in Jinja, for a tokenizer that has no chat template.
        rank_llm: prepare passages as RankLLM does: repair their encoding with the package ftfy, cut them at 300 words,
            and write "Title: … Content: …" where they have a title.
        max_words: the most words of other passages; 0: all.

    Raises:
        ConfigError: `rank_llm` is set and ftfy is not installed.
    """

    bos_tokens: int | None = None
    chat_template: str = ""
    rank_llm: bool = False
    max_words: int = 0

    def __post_init__(self) -> None:
        if self.rank_llm and importlib.util.find_spec("ftfy") is None:
            raise ConfigError(
                "this model's passages are repaired with ftfy, which is not installed; pip install ftfy (extra "
                "`published`)"
            )

    @property
    def changes_passages(self) -> bool:
        return self.rank_llm or self.max_words > 0

    def passage_text(self, text: str, title: str = "") -> str:
        """Returns the text of a passage as the model was trained on it, with single spaces between words.

        Args:
            title: the title at the start of `text`; empty for a passage without one.
        """
        most = self.max_words
        if self.rank_llm:
            import ftfy

            text = f"Title: {title} Content: {text.removeprefix(title)}" if title else text
            text, most = ftfy.fix_text(stream_safe(text.strip())), _RANK_LLM_WORDS
        words = text.split()
        return " ".join(words[:most] if most else words)
