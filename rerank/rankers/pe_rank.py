"""PE-Rank (Liu et al., WWW 2025): every passage enters the language model as one vector.

The query's text and one projected vector a passage go through a small causal LM; the hidden state of the last position
scores the projected passages by inner product, all in one step or one after the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from rerank.config import Precision
from rerank.errors import InvalidRequest
from rerank.models.encoder import Encoder
from rerank.models.last_token import translate_out_of_memory
from rerank.models.loading import pick_device, uses_autocast
from rerank.models.packing_probe import make_last_token_reader
from rerank.prompting.templates import PASSAGE_SLOT, QUERY_SLOT
from rerank.prompting.vector_prompts import VectorPrompts
from rerank.rankers.base import RankerInfo
from rerank.rankers.pe_checkpoint import load_pe_checkpoint
from rerank.rankers.pe_decode import choices, dynamic, one_step
from rerank.types import Passage, Prepared, Query, ScoreKind, Vector, Window, WindowRanking

#: A text may take a token or two more inside a prompt than it does alone.
_SLACK_TOKENS = 2


class PERankRanker:
    """PE-Rank over the vectors of `encoder`.

    Args:
        checkpoint: a folder in one of the layouts that `load_pe_checkpoint` reads.
        encoder: the encoder that the checkpoint was made for.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        decoding: `one_step` orders a window by the scores of one forward pass; `dynamic` chooses passage after passage,
            each choice being read before the next, in one short pass a passage.
        template: name or path of a prompt template, for a checkpoint that names none.
        passage_text_tokens: how much text of a passage is shown beside its vector, if the template shows `{text}`.
        precision: see `rerank.config.Precision`.

    Raises:
        CheckpointError: the checkpoint is incomplete or was made for another encoder.
        ConfigError: no such template.
    """

    def __init__(
        self,
        checkpoint: Path,
        encoder: Encoder,
        device: str = "auto",
        decoding: Literal["one_step", "dynamic"] = "one_step",
        template: str | None = None,
        passage_text_tokens: int = 64,
        precision: Precision = "auto",
    ) -> None:
        self._device = pick_device(device)
        loaded = load_pe_checkpoint(checkpoint, encoder, self._device, template, precision)
        self._encoder = encoder
        self._transformer = loaded.transformer
        self._projector = loaded.projector
        self._dynamic = decoding == "dynamic"
        self._reader = make_last_token_reader(loaded.transformer, uses_autocast(self._device, precision))
        self._text_tokens = passage_text_tokens
        self._prompts = VectorPrompts(loaded.template, loaded.tokenizer, loaded.own_vocabulary, passage_text_tokens)
        half = loaded.context_tokens // (2 * self._prompts.query_repeats)  # the other half is for passages
        self._max_query_tokens = min(encoder.id.max_tokens, half)
        self.info = RankerInfo(
            kind="pe-rank",
            model_id=checkpoint.name,
            model_revision=loaded.revision,
            template_sha256=loaded.template.sha256,
            max_window_size=bisect_right(
                range(1, loaded.context_tokens + 1), loaded.context_tokens, key=self._most_positions
            ),
            score_kind=ScoreKind.RANK if self._dynamic else ScoreKind.WINDOW_LOG_PROB,
            batching=self._reader.batching,
            on_accelerator=self._device.type == "cuda",
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Encodes the query and those passages that bring no vector, each distinct text once.

        A passage counts as truncated when its vector is; text beside the vector is an extract on purpose.
        """
        harmless = self._prompts.harmless(query)
        self._check_query(harmless)
        if query.vector is None and self._prompts.reads_query_vector:
            harmless = replace(harmless, vector=self._encoder.encode([query.text])[0])
        missing = [passage.text for passage in passages if passage.vector is None]
        vectors = iter(self._encoder.encode(missing))
        truncated = iter(self._encoder.is_truncated(missing))
        encoded = [
            replace(passage, vector=next(vectors), vector_truncated=next(truncated))
            if passage.vector is None
            else passage
            for passage in passages
        ]
        if self._prompts.reads_text:
            encoded = [replace(passage, text=self._prompts.shown_text(passage)) for passage in encoded]
        return Prepared(harmless, tuple(encoded), tuple(p.doc_id for p in encoded if p.vector_truncated))

    def tokens(self, window: Window) -> int:
        prompt = len(self._prompts.token_ids(window.query, window.passages))
        return prompt + self._fed_back(len(window.passages), window.top_n)

    @translate_out_of_memory()
    @torch.inference_mode()
    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        """Scores are log-probabilities over the window's passages, from float32 inner products; or minus places."""
        queries = 1 if self._prompts.reads_query_vector else 0
        projected = [self._project(window, queries) for window in windows]  # (queries + n, D)
        inputs = [self._embed(window, vectors) for window, vectors in zip(windows, projected, strict=True)]
        passages = [vectors[queries:] for vectors in projected]  # (n, D) each
        if self._dynamic:
            scores = dynamic(self._reader.prefill, inputs, passages, [window.top_n for window in windows])
        else:
            scores = one_step(self._reader, inputs, passages)
        return [WindowRanking(own) for own in scores]

    def _project(self, window: Window, queries: int) -> torch.Tensor:
        """(queries + n, D): the query's vector where it is read, then the passages', in the model's space.

        Equal vectors are projected once: in one matrix product, their bits would depend on the rows they stand in.
        """
        given: list[Vector | None] = [window.query.vector] * queries
        vectors = [vector for vector in (*given, *(p.vector for p in window.passages)) if vector is not None]
        distinct = {vector.tobytes(): vector for vector in vectors}
        rows = {content: row for row, content in enumerate(distinct)}
        projected = self._projector(torch.from_numpy(np.stack(list(distinct.values()))).to(self._device))
        return projected[[rows[vector.tobytes()] for vector in vectors]]

    def _embed(self, window: Window, projected: torch.Tensor) -> torch.Tensor:
        """(T, D): token embeddings, with the projected vectors in their slots."""
        ids = torch.tensor(self._prompts.token_ids(window.query, window.passages), device=self._device)
        positions = self._transformer.get_input_embeddings()(ids.clamp(min=0))
        vectors = projected.to(positions.dtype)
        positions[ids == PASSAGE_SLOT] = vectors[len(vectors) - len(window.passages) :]
        positions[ids == QUERY_SLOT] = vectors[0]
        return positions

    def _fed_back(self, n: int, top_n: int = 0) -> int:
        """How many choices the model reads: all that it makes but the last, behind which nothing is to be decided."""
        return max(0, choices(n, top_n) - 1) if self._dynamic else 0

    def _most_positions(self, n: int) -> int:
        """What n passages take with the longest query and as much text as is shown of any passage."""
        text = n * (self._text_tokens + _SLACK_TOKENS) if self._prompts.reads_text else 0
        query = self._prompts.query_repeats * self._max_query_tokens
        return self._prompts.length(n) + query + text + self._fed_back(n)

    def _check_query(self, query: Query) -> None:
        added = len(self._prompts.token_ids(query, ())) - self._prompts.length(0)
        tokens = -(-added // self._prompts.query_repeats)
        if tokens > self._max_query_tokens:
            raise InvalidRequest(
                "query",
                f"query and instruction are {tokens} tokens long, {self.info.model_id} reads at most "
                f"{self._max_query_tokens}; shorten them",
                {"tokens": str(tokens), "limit": str(self._max_query_tokens)},
            )
