"""PE-Rank (Liu et al., WWW 2025): each passage enters the language model as one vector.

A causal LM reads the query's text and one projected vector per passage. The hidden state of the last position scores
the projected passages by inner product: all in one step, or one passage after the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from rerank.checkpoints.manifest import model_id, trained_with_instructions
from rerank.models.decode_state import UncachedDecodeState
from rerank.models.encoder import Encoder
from rerank.models.last_token import LastTokenReader
from rerank.models.linear_layers import use_float8
from rerank.models.loading import pick_device
from rerank.models.memory import translate_out_of_memory
from rerank.models.precision import compute_in, pick_precision, uses_autocast
from rerank.prompting.style import PromptStyle
from rerank.prompting.vector_prompts import PASSAGE_SLOT, QUERY_SLOT, VectorPrompts
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.lexical import StemCache, refitted, word_parts
from rerank.rankers.pe_checkpoint import Decoding, load_pe_checkpoint
from rerank.rankers.pe_decode import choice_scores, choices, dynamic, one_step
from rerank.rankers.self_test import Scores, failing_on_windows, windows_of
from rerank.retrieval.hybrid import z_scores
from rerank.types import (
    DecodeCost,
    Passage,
    Precision,
    PreparedTexts,
    Query,
    ScoreKind,
    Vector,
    Window,
    WindowRanking,
    with_text,
)

#: A text may take one or two tokens more inside a prompt than alone.
_SLACK_TOKENS = 2


class PERankRanker(Ranker):
    """Ranks windows of passage vectors by PE-Rank.

    Args:
        checkpoint: a folder in one of the layouts that `load_pe_checkpoint` reads.
        encoder: the encoder that the checkpoint was trained for.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        decoding: `one_step` orders a window by the scores of one forward pass; `dynamic` chooses one passage after the
            other, with one decode step per passage, which reads the last chosen passage; None: as in training.
        template: name or path of a prompt template, for a checkpoint that names none.
        passage_text_tokens: largest number of tokens of text next to a passage's vector, if the template has `{text}`.
        precision: see `rerank.config.Precision`. Passages are encoded in the same precision, with `auto` in float32.
        style: style of the prompt; its `encoder_tokens` limits what the encoder reads of a text.
        lexical_weight: weight of BM25 over the texts of a window, see `_lexical`, because a vector hardly represents
            single words; 0: no BM25. Without effect on dynamic decoding, which gives no scores.

    Raises:
        CheckpointError: the checkpoint is incomplete or was trained for another encoder.
        ConfigError: there is no such template.
        SelfTestFailed: the transformer fails on the windows of the self-test.
    """

    def __init__(
        self,
        checkpoint: Path,
        encoder: Encoder,
        device: str = "auto",
        decoding: Decoding | None = None,
        template: str | None = None,
        passage_text_tokens: int = 64,
        precision: Precision = "auto",
        style: PromptStyle | None = None,
        lexical_weight: float = 0.0,
    ) -> None:
        self._device = pick_device(device)
        loaded = load_pe_checkpoint(checkpoint, encoder, self._device, template, precision)
        style = style or PromptStyle()
        prompt = styled = loaded.template.with_style(style)
        if style.encoder_tokens:
            encoder = encoder.limited(style.encoder_tokens)
        if not (loaded.own_vocabulary or trained_with_instructions(checkpoint)):
            prompt = prompt.without_instruction()  # this model was trained without instructions
        self._is_limited = bool(style.encoder_tokens)
        self._encoder, self._encoder_dtype = encoder, "float32" if precision == "auto" else precision
        self._transformer = loaded.transformer
        self._projector = loaded.projector
        picked = pick_precision(loaded.transformer, precision)
        if picked == "float8":
            use_float8(loaded.transformer)
        self._dynamic = (decoding or loaded.decoding) == "dynamic"
        self._lexical_weight = 0.0 if self._dynamic else lexical_weight
        self._stems = StemCache(encoder.vector_cache.max_bytes)
        self._text_tokens = passage_text_tokens
        self._prompts = VectorPrompts(prompt, loaded.tokenizer, loaded.own_vocabulary, passage_text_tokens)
        self._query_repeats = prompt.query_repeats
        half = loaded.context_tokens // (2 * prompt.query_repeats)  # the other half is for the passages
        self._max_query_tokens = min(encoder.id.max_tokens, half)
        max_window_size = bisect_right(
            range(1, loaded.context_tokens + 1), loaded.context_tokens, key=self._max_positions
        )
        self.reference = self._plain_scores(loaded.transformer, max_window_size)
        compute_in(loaded.transformer, picked)
        autocast = uses_autocast(loaded.transformer, picked)
        self._reader = LastTokenReader(loaded.transformer, autocast, from_vectors=True)
        self.info = RankerInfo(
            kind="pe-rank",
            model_id=model_id(checkpoint),
            model_revision=loaded.revision,
            template_sha256=styled.sha256,
            prompt=str(style),
            reads_blank=style.blank_passages == "read",
            reads_instruction=prompt.reads_instruction,
            max_window_size=max_window_size,
            score_kind=ScoreKind.RANK if self._dynamic else ScoreKind.WINDOW_LOG_PROB,
            supports_batching=self._reader.supports_batching,
            supports_preemption=True,
            has_cache=True,
            max_passage_tokens=encoder.max_text_tokens,
            max_window_tokens=loaded.context_tokens,
            needs_vectors=True,
            relevance="cosine" if encoder.relevance else "",
            gpu_batch_tokens=self._reader.gpu_batch_tokens,
            warning=loaded.warning,
            precision=picked,
        )

    def with_cached(self, passage: Passage) -> Passage:
        return self._encoder.vector_cache.with_cached_vector(passage)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Embeds the query and the passages without a vector, each distinct text once.

        A passage counts as truncated if its vector covers only the beginning of its text. The text next to the vector
        does not count, because it is an extract by design.
        """
        if self._is_limited and query.vector is not None and not self._encoder.reads_whole_query(query.text):
            query = replace(query, vector=None)
        query = self._encoder.with_vector(query)  # its vector is that of the text as it was sent
        fitting = self._prompts.fitting(self._prompts.sanitize(query), self._max_query_tokens)
        if self._lexical_weight:
            passages = [replace(passage, stems=self._stems.stems_of(passage)) for passage in passages]
        bounded = (
            [self._encoder.without_longer_vector(passage) for passage in passages] if self._is_limited else passages
        )
        encoded = self._encoder.with_vectors(bounded, self._encoder_dtype)
        if self._prompts.reads_text:
            encoded = [with_text(passage, self._prompts.shown_text(passage)) for passage in encoded]
        return PreparedTexts(fitting, tuple(encoded), tuple(p.doc_id for p in encoded if p.vector_truncated))

    def encode(self, window: Window) -> Window:
        """Renders token ids with slots for the vectors. With dynamic decoding, `tokens` includes the decode steps."""
        prompt = self._prompts.token_ids(window.query, window.passages)
        tokens = len(prompt) + self._decode_steps(len(window.passages), window.top_n)
        return replace(window, prompts=(prompt,), tokens=tokens)

    @translate_out_of_memory()
    @torch.inference_mode()
    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        """Ranks windows by log-probabilities over their passages, or by minus their ranks in dynamic decoding."""
        inputs, passages = self._inputs(parts)
        if self._dynamic:
            found = dynamic(self._reader.prefill, inputs, passages, [window.top_n for window in parts])
        else:
            found = [(scores, DecodeCost()) for scores in one_step(self._reader.read(inputs), passages)]
        return [
            WindowRanking(
                scores, cosines=_cosines(window), decode_cost=decode_cost, lexical=self._lexical(window, scores)
            )
            for window, (scores, decode_cost) in zip(parts, found, strict=True)
        ]

    def _lexical(self, window: Window, scores: Sequence[float]) -> tuple[float, ...]:
        """Returns the weighted z-scores of BM25, refitted to the model's scores, see `rerank.rankers.lexical.refitted`.

        If the first stage's scores count, the weight is multiplied by 1 - r, where r is their correlation with BM25
        refitted to them: a first stage of BM25 already adds the same signal.
        """
        if not self._lexical_weight:
            return ()
        parts = word_parts(window.query, [passage.stems or () for passage in window.passages])
        shared = 0.0
        if window.weight and window.first_stage:
            shared = float(np.mean(z_scores(window.first_stage) * z_scores(refitted(parts, window.first_stage))))
        weight = self._lexical_weight * (1 - max(shared, 0.0))
        return tuple((weight * z_scores(refitted(parts, scores))).tolist())

    @torch.inference_mode()
    def choice_scores(self, windows: Sequence[Window]) -> list[list[tuple[float, ...]]]:
        """See `rerank.rankers.pe_decode.choice_scores`."""
        return choice_scores(self._reader.prefill, *self._inputs(windows))

    @torch.inference_mode()
    def _plain_scores(self, transformer: PreTrainedModel, max_window_size: int) -> Scores:
        """Returns the scores of the self-test's windows by the transformer alone, without a batch, cache or padding."""
        prefill = partial(UncachedDecodeState, transformer)
        with failing_on_windows():
            windows = [self.encode(window) for window in windows_of(self, max_window_size)]
            inputs, passages = self._inputs(windows)
            if self._dynamic:
                return tuple(chain.from_iterable(choice_scores(prefill, inputs, passages)))
            return tuple(one_step(prefill(inputs, 0).outputs, passages))

    def _inputs(self, windows: Sequence[Window]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns (T, D) input vectors and (n, D) projected passages of each window."""
        queries = 1 if self._prompts.reads_query_vector else 0
        projected = [self._project(window, queries) for window in windows]  # (queries + n, D) each
        inputs = [self._embed(window, vectors) for window, vectors in zip(windows, projected, strict=True)]
        return inputs, [vectors[queries:] for vectors in projected]

    def _project(self, window: Window, queries: int) -> torch.Tensor:
        """Returns (queries + n, D) vectors of query and passages in the model's space.

        Equal vectors are projected once, because the rounding of a matrix product depends on the row.
        """
        of_query: list[Vector | None] = [window.query.vector] * queries
        vectors = [vector for vector in (*of_query, *(p.vector for p in window.passages)) if vector is not None]
        distinct = {vector.tobytes(): vector for vector in vectors}
        rows = {content: row for row, content in enumerate(distinct)}
        projected = self._projector(torch.from_numpy(np.stack(list(distinct.values()))).to(self._device))
        return projected[[rows[vector.tobytes()] for vector in vectors]]

    def _embed(self, window: Window, projected: torch.Tensor) -> torch.Tensor:
        """Returns (T, D) token embeddings of the prompt, with the projected vectors in their slots."""
        ids = torch.tensor(window.prompts[0], device=self._device)
        embeddings = self._transformer.get_input_embeddings()(ids.clamp(min=0))
        vectors = projected.to(embeddings.dtype)
        embeddings[ids == PASSAGE_SLOT] = vectors[len(vectors) - len(window.passages) :]
        embeddings[ids == QUERY_SLOT] = vectors[0]
        return embeddings

    def _decode_steps(self, n: int, top_n: int = 0) -> int:
        """Number of positions that dynamic decoding reads after the prompt: the chosen passages but the last."""
        return max(0, choices(n, top_n) - 1) if self._dynamic else 0

    def _max_positions(self, n: int) -> int:
        """Number of positions of a window of n passages, with the longest query and the longest text of each."""
        text = n * (self._text_tokens + _SLACK_TOKENS) if self._prompts.reads_text else 0
        query = self._query_repeats * self._max_query_tokens
        return self._prompts.length(n) + query + text + self._decode_steps(n)


def _cosines(window: Window) -> tuple[float, ...]:
    """Returns the cosine of the query with each passage, by their unit vectors; none for a query without a vector."""
    query, vectors = window.query.vector, [p.vector for p in window.passages if p.vector is not None]
    if query is None or not vectors:
        return ()
    return tuple((np.stack(vectors) @ query).tolist())
