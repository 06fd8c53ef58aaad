"""Renders the texts of passages as prompts, for rankers whose model runs in this process or in a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import TEXT_FIELDS, Template, load_template
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Window


class TextPrompts(ABC):
    """Renders the prompts of a ranker whose model is in this process or in an inference server.

    Args:
        tokenizer: the model's tokenizer.
        context_tokens: largest number of tokens of a prompt and its answer.
        template: a prompt template, or its name or path.
        answer_tokens: number of tokens that every prompt leaves free for the answer.
        passage_tokens: largest number of tokens shown per passage; 0: no limit but the context.
        thinks: whether the model reasons before it answers.
        query_tokens: largest number of tokens of a query; 0: half of a prompt is the limit.

    Attributes:
        max_window_size, max_window_tokens: the largest window, in passages and in tokens; subclasses set them.

    Raises:
        CheckpointError: the chat template begins a reasoning, and `thinks` is False.
        ConfigError: there is no such template.
    """

    kind: ClassVar[str]
    score_kind: ClassVar[ScoreKind]
    max_window_size: int
    max_window_tokens: int

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        template: str | Template,
        answer_tokens: int = 0,
        passage_tokens: int = 0,
        thinks: bool = False,
        query_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        loaded = load_template(template, TEXT_FIELDS)
        limits = (context_tokens, answer_tokens, passage_tokens)
        self.renderer = ListwiseRenderer(loaded, tokenizer, *limits, thinks, query_tokens)
        if self.renderer.opens_reasoning and not thinks:
            raise CheckpointError(
                "the chat template ends with <think>: the model reasons before it answers, and there is no "
                "room for it; use a checkpoint or chat template that answers at once, or `ranker: generation` with "
                "`thinking_tokens: 4096`"
            )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """See `Ranker.prepare`."""
        return self.renderer.prepare(query, passages)

    def describe(self, model_id: str, revision: str) -> RankerInfo:
        """Returns the description of a ranker with these prompts."""
        return RankerInfo(
            kind=self.kind,
            model_id=model_id,
            model_revision=revision,
            template_sha256=self.renderer.template.sha256,
            prompt=str(self.renderer.template.style),
            reads_instruction=self.renderer.template.reads_instruction,
            reads_blank=self.renderer.template.style.blank_passages == "read",
            warning=self.renderer.warning,
            max_window_size=self.max_window_size,
            score_kind=self.score_kind,
            max_passage_tokens=self.renderer.passage_tokens,
            max_window_tokens=self.max_window_tokens,
        )

    @abstractmethod
    def encode(self, window: Window) -> Window: ...
