"""Prompts of block attention: a shared beginning, one block for each passage, and a tail that sees everything.

The template's prefix is the beginning, its body a block, and its suffix the tail. A block is the passage, then text
without the passage, then the identifier. Each part is tokenised alone, so that its tokens depend on its text only.
"""

from __future__ import annotations

from dataclasses import dataclass

from rerank.errors import ConfigError, InvalidRequest
from rerank.prompting.listwise import ListwiseRenderer, PassageContext, TokenIds, fill_fields
from rerank.prompting.templates import Template
from rerank.types import Window

_CANDIDATE, _RANK = "{candidate}", "{rank}"


@dataclass(frozen=True, slots=True)
class BlockPrompt:
    """The token ids of a window's parts.

    Attributes:
        shared: the beginning.
        passages: the text of each passage.
        link: what stands in each block between passage and identifier.
        tail: what follows the blocks, up to the opening bracket of the answer.
        truncated: places of the passages that were truncated.
    """

    shared: TokenIds
    passages: tuple[TokenIds, ...]
    link: TokenIds
    tail: TokenIds
    truncated: tuple[int, ...]


class BlockRenderer(ListwiseRenderer):
    """Renders windows in blocks, for a template with `attention: block`."""

    def blocks(self, window: Window) -> BlockPrompt:
        """The blocks of a window whose query and passages are sanitized.

        Raises:
            InvalidRequest: the query leaves no room for a passage.
        """
        link = self.template.body.removeprefix(_CANDIDATE).removesuffix(_RANK)
        parts = (self.template.prefix, link, self.template.suffix)
        n = len(window.passages)
        values = {"num": str(n), "query": window.query.text, "instruction": window.query.instruction}
        shared, link_ids, tail = (tuple(self.continuation(fill_fields(part, values))) for part in parts)
        room = self._prompt_tokens - len(shared) - len(link_ids) - 1 - len(tail)
        if room < 1:
            reason = f"the query leaves {room} of {self._prompt_tokens} tokens for a passage; use a shorter query"
            raise InvalidRequest("query", reason)
        limit = min(room, self.passage_tokens)
        passages = [each.token_ids or tuple(self.continuation(each.text)) for each in window.passages]
        truncated = tuple(place for place, ids in enumerate(passages) if len(ids) > limit)
        return BlockPrompt(shared, tuple(ids[:limit] for ids in passages), link_ids, tail, truncated)

    def _context_between(self) -> PassageContext:
        """Passages are tokenised alone."""
        return PassageContext("", "", "", "")


def check_has_blocks(template: Template) -> None:
    """Raises: ConfigError if the prompt of a template with `attention: block` cannot be divided into blocks."""
    if template.chat_markup or template.system_message or template.prefix_assistant or template.body_assistant:
        raise ConfigError("attention: block needs a prompt of plain text; set chat_markup: false, and leave turns out")
    if not template.body.startswith(_CANDIDATE) or not template.body.endswith(_RANK):
        raise ConfigError("attention: block needs a body that begins with {candidate} and ends with {rank}")
    if not template.prefix:
        raise ConfigError("attention: block needs a prefix, the beginning that all passages see")
