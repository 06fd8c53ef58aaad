"""Encodes queries and passages as unit vectors, for dense retrieval, the fusion and PE-Rank."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as modules_of
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from rerank.checkpoints.hub import repository_of
from rerank.checkpoints.load_errors import loading
from rerank.checkpoints.settings_files import read_settings
from rerank.config.encoder import DEFAULT_ENCODER as DEFAULT_ENCODER
from rerank.config.encoder import EncoderConfig
from rerank.config.relevance import DEFAULT_RELEVANCE
from rerank.errors import CheckpointError
from rerank.models.batches import batch_tokens, batches_by_length
from rerank.models.encoder_loading import (
    EncoderId,
    Prompts,
    is_folder,
    load_encoder,
    locate_encoder,
    resolve_prompts,
    weights_sha256,
    write_end_token,
)
from rerank.models.memory import fitting_tokens
from rerank.models.precision import copy_computing_in, copy_sharing_weights, pick_encoder_dtype
from rerank.models.tokenizer import backend_tokenizer_of
from rerank.models.vector_cache import VectorCache
from rerank.prompting.tokens import beginning, first_tokens
from rerank.types import Matrix, Passage, Precision, Query
from rerank.util.combining import nfc

#: An example of a text, to count the tokens that the model adds to each text.
_PROBE = "word"
#: Number of tokens of the batch that measures how much memory a batch takes on a GPU.
_MEASURED_TOKENS = 2048
#: Largest number of tokens of a text in that batch.
_MEASURED_TEXT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class _TextKind:
    """The prompt of queries, or of passages, and the tokens that it leaves for a text.

    Attributes:
        prompt: the text before each query or passage.
        prefix: the prompt if it is put directly before the text, so that tokens may span both; empty with a chat
            template.
        prefix_tokens: the length of `prefix`.
        max_text_tokens: largest number of tokens of a text, without the prompt, special tokens and chat markup.
    """

    prompt: str
    prefix: str
    prefix_tokens: int
    max_text_tokens: int


class Encoder:
    """A sentence-transformers model with unit-length output, safe to share between threads.

    Vectors are the same as from sentence-transformers' `encode_query` and `encode_document`.

    Args:
        encoder: settings of the encoder, or its name: a folder, or a model on the Hugging Face hub. The default model
            is read from the package of the extra `offline` if that is installed: the same weights without a download.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        vector_cache_bytes: size limit of `vector_cache`; 0: no cache.

    Attributes:
        vector_cache: vectors of passages of earlier requests.
        relevance: the curve that gives the relevance of passages by their cosines; None if none was fitted.
        names: names by which a checkpoint may refer to the encoder: its name; for a folder also the folder's last part
            and the name in config.json.

    Raises:
        ConfigError: the model cannot be found or downloaded, or the default model's weights are not the published
            ones.
        CheckpointError: the model is incomplete, damaged, or needs code from its folder.
    """

    def __init__(
        self, encoder: EncoderConfig | str = DEFAULT_ENCODER, device: str = "auto", vector_cache_bytes: int = 0
    ) -> None:
        settings = EncoderConfig.of(encoder)
        name = settings.name
        #: The folder of the model files.
        self.folder = folder = locate_encoder(name)
        sha256 = weights_sha256(name, folder)
        transformers_logging.disable_progress_bar()  # loading the weights takes a second
        self._computing: dict[Precision, SentenceTransformer] = {}
        self._lock = threading.Lock()
        self.vector_cache = VectorCache(vector_cache_bytes)
        with loading("encoder", folder):
            self._model = load_encoder(folder, device, settings.pooling)
            if settings.end_token:
                write_end_token(self._model.tokenizer, settings.end_token)
            prompts = resolve_prompts(folder, self._model.prompts, settings.query_prompt, settings.document_prompt)
            self.id = EncoderId(
                name=str(folder.resolve()) if is_folder(name) else name,  # an index may be opened from any folder
                sha256=sha256,
                dimension=int(self._model.get_embedding_dimension() or 0),
                max_tokens=int(self._model.max_seq_length or 0),
                query_prompt=prompts.query,
                document_prompt=prompts.document,
                pooling=settings.pooling or "",
                end_token=settings.end_token,
            )
            if self.id.max_tokens < 1:
                raise CheckpointError(f"encoder {folder} reads {self.id.max_tokens} tokens; correct max_seq_length")
            self._batch_tokens = batch_tokens(self.device.type)
            # Counting tokens need not wait for a batch, which takes a tenth of a second in a large model.
            self._stream = torch.cuda.Stream(self.device, priority=-1) if self.device.type == "cuda" else None
            self._queries = self._kind_of("query", prompts.query)
            self._passages = self._kind_of("document", prompts.document)
            if not np.isfinite(self.encode_passages(["a text", "another"])).all():
                raise CheckpointError(f"encoder {folder} gives vectors that are not finite; use another one")
            length = min(self.max_text_tokens, _MEASURED_TEXT_TOKENS)
            texts = [f"{number} " + "a " * length for number in range(max(1, _MEASURED_TOKENS // length))]
            self._batch_tokens = fitting_tokens(
                partial(self.encode_passages, texts), _MEASURED_TOKENS, self.device, self._batch_tokens
            )
        self.relevance = settings.relevance or (DEFAULT_RELEVANCE if self.id.name == DEFAULT_ENCODER else None)
        self.names = frozenset({self.id.name, repository_of(name)})
        if is_folder(name):
            stated = read_settings(folder / "config.json").get("_name_or_path", "")
            self.names |= {folder.resolve().name, str(stated)} - {""}

    def _kind_of(self, task: Literal["query", "document"], prompt: str) -> _TextKind:
        """Raises: CheckpointError if the prompt leaves no token for a text."""
        first: Any = self._model[0]
        limit = min(self.id.max_tokens, getattr(first, f"{task}_length", None) or self.id.max_tokens)
        prefix = "" if "message" in getattr(first, "modality_config", ()) else prompt
        prefix_tokens, with_text = self._count([prefix, f"{prefix}{_PROBE}"])
        whole = self._model.preprocess([_PROBE], prompt, task=task, processing_kwargs={"text": {"truncation": False}})
        around = whole["input_ids"].shape[1] - (with_text - prefix_tokens)
        if around >= limit:
            raise CheckpointError(
                f"encoder {self.folder} reads {limit} tokens, and prompt and special tokens of a {task} take {around}: "
                "none is left for a text; use a shorter prompt"
            )
        return _TextKind(prompt, prefix, prefix_tokens, limit - around)

    def limited(self, max_tokens: int) -> Encoder:
        """Returns an encoder with the same weights that reads at most `max_tokens` tokens; self if it reads no more.

        It has another vector cache, because its vectors of long texts differ.

        Args:
            max_tokens: limit on the tokens of a text with prompt and special tokens.

        Raises:
            CheckpointError: prompt and special tokens leave no token for a text.
        """
        if max_tokens >= self.id.max_tokens:
            return self
        other = copy.copy(self)
        other._model = copy_sharing_weights(self._model)
        other._model.max_seq_length = max_tokens
        other._computing, other._lock = {}, threading.Lock()
        other.vector_cache = VectorCache(self.vector_cache.max_bytes)
        other.id = replace(self.id, max_tokens=max_tokens)
        other._queries = other._kind_of("query", self.id.query_prompt)
        other._passages = other._kind_of("document", self.id.document_prompt)
        return other

    def without_longer_vector(self, passage: Passage) -> Passage:
        """Returns the passage, without a vector that was made from more of the text than this encoder reads."""
        if passage.vector is None or self._fits(passage.text, self._passages):
            return passage
        return replace(passage, vector=None, vector_truncated=False)

    def _fits(self, text: str, kind: _TextKind) -> bool:
        """Returns True if the whole text is read. Counts tokens only if there are too many characters."""
        if len(text) <= kind.max_text_tokens:
            return True
        return self._text_tokens([self._beginning(text, kind)], kind)[0] <= kind.max_text_tokens

    def copy_tokenizer(self) -> PreTrainedTokenizerBase:
        """Copies the encoder's tokenizer, because a tokenizer that several threads share raises "Already borrowed"."""
        return copy.deepcopy(self._model.tokenizer)

    def copy_model(self) -> SentenceTransformer:
        """Copies the model, for a training."""
        return copy.deepcopy(self._model)

    @property
    def prompts(self) -> Prompts:
        """The prompts in front of each query and each passage."""
        return Prompts(self.id.query_prompt, self.id.document_prompt)

    @property
    def transformer(self) -> PreTrainedModel:
        """The transformer whose token states are pooled."""
        return cast(PreTrainedModel, self._model[0].auto_model)

    def transformer_in(self, dtype: Precision) -> PreTrainedModel:
        """Returns a transformer with the weights that encode texts in `dtype`, for other inputs."""
        with self._lock:
            return copy_sharing_weights(cast(Any, self._model_in(dtype)[0]).auto_model)

    @property
    def token_embeddings(self) -> torch.Tensor:
        """(vocabulary, hidden) float32 input embeddings of the transformer, on the CPU."""
        return cast(torch.nn.Embedding, self.transformer.get_input_embeddings()).weight.detach().float().cpu()

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """Returns (N, D) float32 unit vectors of queries; a text beyond `max_query_tokens` is ignored."""
        return self._encode(texts, self._queries, "float32")[0]

    def encode_passages(self, texts: Sequence[str], dtype: Precision = "float32") -> Matrix:
        """Returns (N, D) float32 unit vectors. Equal texts get equal bits; text beyond `max_text_tokens` is ignored.

        Args:
            texts: N texts of passages.
            dtype: number format of the matrix products, see `pick_dtype`; vectors of different formats are comparable.
        """
        return self._encode(texts, self._passages, self.pick_dtype(dtype))[0]

    def vectors_and_truncation(self, texts: Sequence[str], dtype: Precision = "float32") -> tuple[Matrix, list[bool]]:
        """Returns the (N, D) vectors of `encode_passages`, and for each text whether only its beginning was read."""
        vectors, counts = self._encode(texts, self._passages, self.pick_dtype(dtype))
        return vectors, [tokens > self.max_text_tokens for tokens in counts]

    def _encode(self, texts: Sequence[str], kind: _TextKind, dtype: Precision) -> tuple[Matrix, list[int]]:
        """Encodes equal texts once, and only the beginnings of long texts.

        Returns the (N, D) vectors, and the number of tokens of each text; for a cut text it exceeds the limit.
        """
        distinct = list(dict.fromkeys(texts))
        read = [self._beginning(nfc(text), kind) for text in distinct]
        counts = self._text_tokens(read, kind)
        vectors = np.empty((len(distinct), self.id.dimension), dtype=np.float32)
        around = self.id.max_tokens - kind.max_text_tokens
        # sentence-transformers sorts by characters, and then a mixture of text and code is padded by a quarter.
        lengths = [around + min(tokens, kind.max_text_tokens) for tokens in counts]
        for rows in batches_by_length(lengths, self._batch_tokens):
            autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=dtype == "bfloat16")
            with self._lock, torch.cuda.stream(self._stream), autocast:
                model = self._model_in(dtype)
                encode = model.encode_query if kind is self._queries else model.encode_document
                vectors[rows] = encode(
                    [read[row] for row in rows],
                    prompt=kind.prompt,
                    batch_size=len(rows),
                    normalize_embeddings=True,
                    convert_to_numpy=True,
                    show_progress_bar=False,
                )
        row = {text: index for index, text in enumerate(distinct)}
        rows = [row[text] for text in texts]
        return vectors[rows], [counts[one] for one in rows]

    def with_vectors(self, passages: Sequence[Passage], dtype: Precision = "float32") -> list[Passage]:
        """Returns the passages with vectors. Missing vectors are computed, and cached for later requests."""
        encoded, missing = list(passages), [row for row, passage in enumerate(passages) if passage.vector is None]
        texts, limit = [passages[row].text for row in missing], self.max_text_tokens
        found = self._encode(texts, self._passages, self.pick_dtype(dtype))
        for row, vector, tokens in zip(missing, *found, strict=True):
            is_truncated = tokens > limit
            self.vector_cache.put(passages[row].text, vector, min(tokens, limit), is_truncated)
            encoded[row] = replace(passages[row], vector=vector, vector_truncated=is_truncated)
        return encoded

    def pick_dtype(self, dtype: Precision) -> Precision:
        return pick_encoder_dtype(self.device, dtype)

    def _model_in(self, dtype: Precision) -> SentenceTransformer:
        """Returns the model that computes in `dtype`: on a CPU a copy with other linear layers, made on first use."""
        if dtype not in self._computing:
            self._computing[dtype] = copy_computing_in(self._model, self.device, dtype)
        return self._computing[dtype]

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def pooling(self) -> str:
        """The pooling of token states into one vector, as sentence-transformers names it: `mean`, `cls`, `lasttoken`, …

        Empty for an encoder without a pooling module.
        """
        modes = (getattr(module, "pooling_mode", "") for module in self._model)
        return next((mode if isinstance(mode, str) else "+".join(mode) for mode in modes if mode), "")

    @property
    def ends_with_pooling(self) -> bool:
        """True if the model does nothing after pooling except for scaling vectors to unit length."""
        modules = [type(module) for module in self._model]
        return modules[1:] in ([modules_of.Pooling], [modules_of.Pooling, modules_of.Normalize])

    @property
    def max_text_tokens(self) -> int:
        """The number of tokens of a passage that are read, without its prompt and special tokens."""
        return self._passages.max_text_tokens

    @property
    def max_query_tokens(self) -> int:
        """The number of tokens of a query that are read, without its prompt and special tokens."""
        return self._queries.max_text_tokens

    def reads_whole_query(self, text: str) -> bool:
        """Returns False if only the beginning of a query is read."""
        return self._fits(text, self._queries)

    def with_vector(self, query: Query) -> Query:
        """Returns the query with its vector, so that it is encoded only once."""
        if query.vector is not None:
            return query
        is_truncated = query.is_truncated or not self.reads_whole_query(query.text)
        return replace(query, vector=self.encode_queries([query.text])[0], is_truncated=is_truncated)

    def beginning(self, text: str) -> str:
        """Returns the beginning of a passage that `encode_passages` treats as the whole text."""
        return self._beginning(text, self._passages)

    def _beginning(self, text: str, kind: _TextKind) -> str:
        return beginning(text, kind.max_text_tokens, lambda start: self._text_tokens([start], kind)[0])

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Returns the length of each passage in tokens, without its prompt and special tokens."""
        return self._text_tokens(texts, self._passages)

    def _text_tokens(self, texts: Sequence[str], kind: _TextKind) -> list[int]:
        return [max(0, n - kind.prefix_tokens) for n in self._count([kind.prefix + text for text in texts])]

    def _count(self, texts: Sequence[str]) -> list[int]:
        return [len(encoded) for encoded in self._splitter.encode_batch_fast(list(texts), add_special_tokens=False)]

    def cut(self, text: str, tokens: int) -> str:
        """See `first_tokens`."""
        return first_tokens(text, tokens, self.token_ends)

    def token_ends(self, text: str) -> npt.NDArray[np.int64]:
        """Returns the (T,) end of each token, in characters, without waiting for a batch that `encode` computes."""
        (encoded,) = self._splitter.encode_batch([text], add_special_tokens=False)
        return np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)[:, 1]

    @cached_property
    def _splitter(self) -> Tokenizer:
        """A tokenizer for token offsets. Its settings never change, so threads may share it."""
        with self._lock:
            return backend_tokenizer_of(self._model.tokenizer)
