"""Multiplies token states with the vocabulary of a SPLADE model, and pools over the tokens of each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rerank.models.onednn import compute_by_onednn
from rerank.util.sparse_vectors import TermIds

#: Terms that are multiplied at once: their logits for a batch stay in the processor's cache until they are pooled.
_TERMS_AT_ONCE = 2048


class VocabularyProduct:
    """Turns token states into weights of terms.

    Args:
        decoder: the layer that multiplies a state with the vocabulary, with or without a bias.
        pooling: over the tokens of a text, `max` or `sum`.
        activations: how many times log(1 + x) is applied to relu(logit).
    """

    def __init__(self, decoder: nn.Linear, pooling: Literal["max", "sum"], activations: int = 1) -> None:
        self._decoder, self._pooling, self._activations = decoder, pooling, activations
        self._parts: dict[str, list[nn.Linear]] = {}

    @torch.inference_mode()
    def of_terms(self, texts: Sequence[npt.NDArray[np.floating]], terms: TermIds) -> npt.NDArray[np.float32]:
        """Returns (N, K) float32 weights of K terms in N texts.

        Args:
            texts: (tokens, hidden) states of each text, in any floating-point type.
        """
        weights = torch.zeros(len(texts), len(terms), dtype=torch.float32)
        chosen = torch.from_numpy(terms).long().to(self._decoder.weight.device)
        matrix = self._decoder.weight[chosen].float().cpu()
        bias = 0.0 if self._decoder.bias is None else self._decoder.bias[chosen].float().cpu()
        for row, states in enumerate(texts):
            if len(states):
                weights[row] = self._pool(torch.from_numpy(states.astype(np.float32)) @ matrix.T + bias)
        return weights.numpy()

    @torch.inference_mode()
    def pooled(self, texts: Sequence[torch.Tensor], dtype: Literal["float32", "bfloat16"]) -> npt.NDArray[np.float32]:
        """Returns (N, vocabulary) float32 weights of all terms.

        Args:
            texts: (tokens, hidden) states of each text; all on the decoder's device.
            dtype: of the product.
        """
        lengths = [len(states) for states in texts]
        weights = torch.zeros(len(texts), self._decoder.out_features, dtype=torch.float32)
        if not sum(lengths):
            return weights.numpy()
        states = torch.cat(list(texts)).to(getattr(torch, dtype))
        start = 0
        for part in self._parts.get(dtype) or self._parts.setdefault(dtype, self._divided(getattr(torch, dtype))):
            logits = part(states).split(lengths)
            for row, of_text in enumerate(logits):
                if len(of_text):
                    weights[row, start : start + part.out_features] = self._pool(of_text)
            start += part.out_features
        return weights.numpy()

    def _pool(self, logits: torch.Tensor) -> torch.Tensor:
        """(tokens, terms) logits → (terms,) float32 weights."""
        if self._pooling == "max":  # the activation does not change which token has the largest
            return self._activated(logits.amax(0))
        return self._activated(logits).sum(0)

    def _activated(self, logits: torch.Tensor) -> torch.Tensor:
        weights = logits.float().relu()
        for _ in range(self._activations):
            weights = weights.log1p()
        return weights

    def _divided(self, dtype: torch.dtype) -> list[nn.Linear]:
        """Layers with `_TERMS_AT_ONCE` terms each, by oneDNN on a CPU."""
        weight, bias = self._decoder.weight.detach(), self._decoder.bias
        parts = []
        for start in range(0, self._decoder.out_features, _TERMS_AT_ONCE):
            of_terms = slice(start, start + _TERMS_AT_ONCE)
            part = nn.Linear(weight.shape[1], len(weight[of_terms]), device="meta")
            part.weight = nn.Parameter(weight[of_terms].to(dtype), requires_grad=False)
            part.bias = None if bias is None else nn.Parameter(bias.detach()[of_terms].to(dtype), requires_grad=False)
            if weight.device.type == "cpu" and torch.backends.mkldnn.is_available():
                compute_by_onednn(part, dtype)
            parts.append(part)
        return parts
