"""PE-Rank (Liu et al., WWW 2025): every passage enters the language model as one vector.

The query's text, one projected vector a passage and the query's projected vector go through a small causal LM;
the hidden state of the last position scores the projected passages by inner product, all in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PretrainedConfig

from rerank.backbone import build_transformer, pick_device, read_config, read_weights
from rerank.encoder import Encoder, EncoderId
from rerank.errors import CheckpointError, InvalidRequest
from rerank.files import sha256_of_files
from rerank.prompts import PASSAGE_SLOT, QUERY_SLOT, load_template, vector_prompt
from rerank.rankers.base import RankerInfo
from rerank.rankers.projector import ResidualProjector
from rerank.types import Passage, Prepared, Query, ScoreKind, Window, WindowRanking

_PROJECTOR_PREFIX = "projector."


class PERankRanker:
    """One-step PE-Rank over the vectors of `encoder`.

    Args:
        checkpoint: a folder with config.json (a causal transformers architecture, and `encoder_name`,
            `encoder_sha256`, `projector_type`, `template`) and model.safetensors.
        encoder: the encoder that the checkpoint was made for.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        CheckpointError: the checkpoint is incomplete or was made for another encoder.
    """

    def __init__(self, checkpoint: Path, encoder: Encoder, device: str = "auto") -> None:
        config = read_config(checkpoint)
        _check_encoder(checkpoint, config, encoder.id)
        weights = read_weights(checkpoint)
        self._encoder = encoder
        self._tokenizer = encoder.own_tokenizer()
        self._device = pick_device(device)
        self._template = load_template(config.template)
        self._transformer = build_transformer(config, weights, encoder.word_vectors, self._device)
        self._projector = _build_projector(checkpoint, config, weights).to(self._device)
        self._max_query_tokens = encoder.id.max_tokens
        self._cached_prompt = lru_cache(maxsize=1024)(self._tokenized_prompt)  # windows of a request share theirs
        around_passages = len(self._prompt(Query(""), 0)) + self._max_query_tokens
        per_passage = len(self._prompt(Query(""), 1)) - len(self._prompt(Query(""), 0))
        self.info = RankerInfo(
            kind="pe-rank",
            model_id=checkpoint.name,
            model_revision=sha256_of_files([checkpoint / "model.safetensors"]),
            template_sha256=self._template.sha256,
            max_window_size=(config.max_position_embeddings - around_passages) // per_passage,
            score_kind=ScoreKind.WINDOW_LOG_PROB,
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Encodes the query and those passages that bring no vector, each distinct text once."""
        self._check_query(query)
        missing = [passage.text for passage in passages if passage.vector is None]
        vectors = iter(self._encoder.encode(missing))
        truncated = iter(self._encoder.is_truncated(missing))
        encoded = tuple(
            replace(passage, vector=next(vectors), vector_truncated=next(truncated))
            if passage.vector is None
            else passage
            for passage in passages
        )
        if query.vector is None:
            query = replace(query, vector=self._encoder.encode([query.text])[0])
        return Prepared(query, encoded, tuple(p.doc_id for p in encoded if p.vector_truncated))

    def tokens(self, window: Window) -> int:
        return len(self._prompt(window.query, len(window.passages)))

    @torch.inference_mode()
    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        """Scores are log-probabilities over the window's passages, from float32 inner products."""
        projected = [self._projector(_stack(window, self._device)) for window in windows]  # (1 + n, D), query first
        inputs = [self._embed(window, vectors) for window, vectors in zip(windows, projected, strict=True)]
        last = torch.tensor([len(positions) - 1 for positions in inputs], device=self._device)
        # Padding on the right of a causal model is never read from, so no mask is needed.
        hidden = self._transformer(
            inputs_embeds=pad_sequence(inputs, batch_first=True), use_cache=False
        ).last_hidden_state
        read = hidden[torch.arange(len(inputs), device=self._device), last]  # (B, D)
        return [
            WindowRanking(_log_probabilities(vectors[1:], state))
            for vectors, state in zip(projected, read, strict=True)
        ]

    def _embed(self, window: Window, projected: torch.Tensor) -> torch.Tensor:
        """(T, D): word vectors, with the projected vectors in their slots."""
        ids = torch.tensor(self._prompt(window.query, len(window.passages)), device=self._device)
        positions = self._transformer.get_input_embeddings()(ids.clamp(min=0))
        positions[ids == PASSAGE_SLOT] = projected[1:]
        positions[ids == QUERY_SLOT] = projected[0]
        return positions

    def _prompt(self, query: Query, num: int) -> tuple[int, ...]:
        return self._cached_prompt(query.text, query.instruction, num)

    def _tokenized_prompt(self, text: str, instruction: str, num: int) -> tuple[int, ...]:
        return tuple(vector_prompt(self._template, self._tokenizer, Query(text, instruction=instruction), num))

    def _check_query(self, query: Query) -> None:
        tokens = len(self._prompt(query, 0)) - len(self._prompt(Query(""), 0))
        if tokens > self._max_query_tokens:
            raise InvalidRequest(
                "query",
                f"query and instruction are {tokens} tokens long, {self.info.model_id} reads at most "
                f"{self._max_query_tokens}; shorten them",
                {"tokens": str(tokens), "limit": str(self._max_query_tokens)},
            )


def _stack(window: Window, device: torch.device) -> torch.Tensor:
    """(1 + n, D): the query's vector, then the passages'."""
    rows = [window.query.vector, *(passage.vector for passage in window.passages)]
    return torch.from_numpy(np.stack([row for row in rows if row is not None])).to(device)


def _log_probabilities(passages: torch.Tensor, state: torch.Tensor) -> tuple[float, ...]:
    """log-softmax over n of h · eᵢ.

    Row by row in float64, so that a passage's score depends neither on its place nor on n, and equal passages tie.
    """
    logits = (passages.double() * state.double()).sum(-1)  # (n,)
    return tuple(torch.log_softmax(logits, dim=0).tolist())


def _check_encoder(checkpoint: Path, config: PretrainedConfig, encoder: EncoderId) -> None:
    made_for = (getattr(config, "encoder_name", None), getattr(config, "encoder_sha256", None))
    if made_for != (encoder.name, encoder.sha256):
        raise CheckpointError(
            f"{checkpoint} was made for encoder {made_for[0]} (sha256 {made_for[1]}), this service loads "
            f"{encoder.name} (sha256 {encoder.sha256}); use that encoder or another checkpoint"
        )


def _build_projector(checkpoint: Path, config: PretrainedConfig, weights: dict[str, torch.Tensor]) -> ResidualProjector:
    if config.projector_type != "residual_mlp2x_gelu":
        raise CheckpointError(f"{checkpoint}: projector_type {config.projector_type!r} is not residual_mlp2x_gelu")
    projector = ResidualProjector(config.hidden_size)
    own = {
        name.removeprefix(_PROJECTOR_PREFIX): tensor
        for name, tensor in weights.items()
        if name.startswith(_PROJECTOR_PREFIX)
    }
    try:
        projector.load_state_dict(own, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"{checkpoint}: the projector does not fit: {error}") from error
    return projector.eval().requires_grad_(False)
