"""E2Rank (Liu et al., arXiv 2510.22733): query and first passages in one prompt become a new vector of the query.

One embedding model retrieves and reranks. The state of the prompt's last token is the vector, and all passages are
ordered by its cosine with their vectors in the index. Nothing is generated, and passages are not encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rerank.config import Precision
from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.last_token import LastTokenReader
from rerank.models.memory import translate_out_of_memory
from rerank.models.precision import pick_precision
from rerank.models.tokenizer import load_tokenizer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import Template
from rerank.rankers.base import Ranker
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Vector, Window, WindowRanking
from rerank.util.files import hub_name_of

#: The largest window. Only its first passages are in the prompt.
_MOST_PASSAGES = 1000


class E2RankPrompts(TextPrompts):
    """Renders windows as prompts of E2Rank.

    Args:
        tokenizer: the model's tokenizer.
        context_tokens: largest number of tokens of a prompt.
        template: a prompt template, or its name or path.
        instruction: the instruction for queries without one.
        prompt_passages: the number of passages in the prompt, the first ones of a window.

    Raises:
        CheckpointError: the chat template opens a reasoning.
        ConfigError: there is no such template.
    """

    kind = "e2rank"
    score_kind = ScoreKind.WINDOW_SCORE

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        template: str | Template,
        instruction: str,
        prompt_passages: int,
    ) -> None:
        super().__init__(tokenizer, context_tokens, template)
        self._instruction = instruction
        self._encodes_shown_text = self.renderer.template.style.encoder_text == "shown"
        self._names = [str(number) for number in range(1, prompt_passages + 1)]
        self.max_window_size, self.max_window_tokens = _MOST_PASSAGES, context_tokens

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Sanitizes the query. With `encoder_text: shown`, passages get the texts that prompts show.

        A passage whose text changes loses its vector. Prompts are rendered later, by `encode`.
        """
        instructed = query if query.instruction else replace(query, instruction=self._instruction)
        prepared, cut = self.renderer.prepare(instructed, ()).query, tuple[str, ...]()
        if self._encodes_shown_text:
            style = self.renderer.template.style
            cut = tuple(passage.doc_id for passage in passages if style.cuts(passage.text))
            passages = [_with_shown_text(passage, style) for passage in passages]
        return PreparedTexts(prepared, tuple(passages), cut)

    def encode(self, window: Window) -> Window:
        """Renders the window's prompt, up to where the model's answer would begin."""
        shown = self.renderer.prepare(window.query, window.passages[: len(self._names)]).passages
        prompt = self.renderer.prompt(replace(window, passages=shown), self._names)
        token_ids = tuple(prompt.token_ids)
        return replace(window, prompts=(token_ids,), tokens=len(token_ids), truncated=prompt.truncated)


def _with_shown_text(passage: Passage, style: PromptStyle) -> Passage:
    """Returns the passage with the text that prompts show, which includes the title."""
    text = style.passage_text(passage.text, passage.title)
    if text == passage.text:
        return passage
    return replace(passage, text=text, title="", vector=None, vector_truncated=False)


def by_cosine(vector: Vector, passages: Sequence[Passage]) -> WindowRanking:
    """Ranks passages by the cosines of their unit vectors with the (D,) unit vector of a prompt."""
    vectors = [passage.vector for passage in passages if passage.vector is not None]
    if len(vectors) < len(passages):
        raise ValueError("a passage of a window has no vector; this is a bug")
    cosines = np.stack(vectors) @ vector if vectors else np.empty(0)
    return WindowRanking(tuple(cosines.tolist()), query_vector=vector)


class E2RankRanker(E2RankPrompts, Ranker):
    """Ranks windows by E2Rank, with an encoder whose weights also read the prompts.

    Args:
        encoder: the model; it pools the last token.
        reads_index: whether the encoder is that of the index, so that passages may already have its vectors.
        template, instruction, prompt_passages: see E2RankPrompts.
        precision: number format of the pass over a prompt; passages are encoded in float32.

    Raises:
        CheckpointError: the encoder does not pool the state of the last token, or changes it afterwards.
        ConfigError: precision is float8, or there is no such template.
    """

    def __init__(
        self,
        encoder: Encoder,
        reads_index: bool,
        template: str | Template,
        instruction: str,
        prompt_passages: int,
        precision: Precision = "auto",
    ) -> None:
        if encoder.pooling != "lasttoken" or not encoder.ends_with_pooling:
            raise CheckpointError(
                f"e2rank reads the state of the last token, and encoder {encoder.id.name} pools by "
                f"{encoder.pooling or 'another way'}; set `path` to the folder of an E2Rank model, or use it as encoder"
            )
        super().__init__(load_tokenizer(encoder.folder), encoder.id.max_tokens, template, instruction, prompt_passages)
        self._encoder, self._reads_index = encoder, reads_index
        if precision == "float8":
            raise ConfigError(
                "e2rank reads prompts with the weights of its encoder, which are not rounded; use bfloat16"
            )
        picked = pick_precision(encoder.transformer, precision)
        self._reader = LastTokenReader(encoder.transformer_in(picked), autocast=picked == "bfloat16")
        self.info = replace(
            self.describe(hub_name_of(encoder.folder) or encoder.id.name, encoder.id.sha256),
            supports_batching=self._reader.supports_batching,
            has_cache=reads_index,
            max_passage_tokens=encoder.max_text_tokens,
            needs_vectors=reads_index,
            gpu_batch_tokens=self._reader.gpu_batch_tokens,
            precision=picked,
        )

    def with_cached(self, passage: Passage) -> Passage:
        return self._encoder.vector_cache.with_cached_vector(passage) if self._reads_index else passage

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Sanitizes the query, and encodes the passages that have no vector of this encoder."""
        prepared = super().prepare(query, passages)
        passages = prepared.passages
        if not self._reads_index:
            bare = (replace(passage, vector=None, vector_truncated=False) for passage in passages)
            passages = [self._encoder.vector_cache.with_cached_vector(passage) for passage in bare]
        encoded = self._encoder.with_vectors(passages)
        truncated = (passage.doc_id for passage in encoded if passage.vector_truncated)
        return PreparedTexts(prepared.query, tuple(encoded), (*prepared.truncated_doc_ids, *truncated))

    @translate_out_of_memory()
    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        """Ranks windows by cosines of the passages' vectors with the prompt's, its last token's normalized state."""
        prompts = [torch.tensor(prompt, device=self._encoder.device) for window in parts for prompt in window.prompts]
        vectors = torch.nn.functional.normalize(self._reader.read(prompts).float(), dim=-1).cpu().numpy()
        return [by_cosine(vector, window.passages) for vector, window in zip(vectors, parts, strict=True)]
