"""Late interaction (ColBERT, Khattab and Zaharia, SIGIR 2020): a vector for each token of query and passage.

The score of a passage is the sum, over the tokens of the query, of the best cosine with a token of the passage. The
model is any that sentence-transformers' `MultiVectorEncoder` loads, also in the layouts of ColBERT and of PyLate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import MultiVectorEncoder

from rerank.checkpoints.adapters import complete_transformer
from rerank.checkpoints.late_interaction_files import check_late_interaction
from rerank.checkpoints.load_errors import loading
from rerank.checkpoints.manifest import model_id
from rerank.checkpoints.weights import weight_files
from rerank.config import Precision
from rerank.models.batches import batch_tokens, batches_by_length
from rerank.models.loading import pick_device
from rerank.models.memory import check_fits, keep_in_memory, translate_out_of_memory
from rerank.models.precision import compute_in, pick_precision, uses_autocast, weights_dtype
from rerank.models.vector_cache import TextCache
from rerank.prompting.sanitize import markup_divider
from rerank.prompting.tokens import PromptTokenizer, beginning
from rerank.rankers.base import Ranker, RankerInfo
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Window, WindowRanking, with_text
from rerank.util.files import sha256_of_files

#: Largest number of passages in a window.
_MOST_PASSAGES = 1000
#: Pattern for the names of weights that do not belong to the transformer, such as ColBERT's linear layer.
_NOT_READ = r"((\w+\.)?(cls|pooler)\.|linear\.|(.*\.)?position_ids$)"


@dataclass(frozen=True, slots=True)
class PassageBatch:
    """Passages of a window that are encoded together.

    Attributes:
        positions: positions of the passages in the window, from 0.
        tokens: number of tokens of the passages.
        query: the (T, D) vectors of the query, once they are computed; all batches of the window share the list.
        scores: position → score, for the passages scored so far; all batches of the window share it.
    """

    window: Window
    positions: tuple[int, ...]
    tokens: int
    query: list[torch.Tensor]
    scores: dict[int, float]


class LateInteractionRanker(Ranker):
    """Scores passages by late interaction. Other arguments and errors: see `rerank.rankers.cross_encoder.PairScorer`.

    Args:
        cache_bytes: largest size of the cache of passage vectors, in bytes.
    """

    def __init__(
        self, checkpoint: Path, device: str = "auto", precision: Precision = "auto", cache_bytes: int = 0
    ) -> None:
        check_late_interaction(checkpoint)
        self._device = picked = pick_device(device)
        with loading("late-interaction model", checkpoint):
            dtype = weights_dtype(picked, precision, width=0)
            check_fits(checkpoint, picked, dtype)
            options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "device": str(picked)}
            self._model = MultiVectorEncoder(str(checkpoint), model_kwargs={"dtype": dtype}, **options)
            keep_in_memory(self._model.eval().requires_grad_(False))
            transformer = cast(Any, self._model.transformers_model)
            complete_transformer(transformer, checkpoint, "FEATURE_EXTRACTION", _NOT_READ, r"(\w+\.)?pooler\.")
            computed = pick_precision(transformer, precision)
            compute_in(transformer, computed)
            self._autocast = uses_autocast(transformer, computed)
        tokenizer = cast(Any, self._model.tokenizer)
        self._divide_special_tokens, self._tokens = markup_divider(tokenizer), PromptTokenizer(tokenizer)
        around = len(tokenizer("")["input_ids"]) + 1  # one more for the token that marks a query or a passage
        reads, longest = cast(Any, self._model[0]), tokenizer.model_max_length
        expansion = reads.query_expansion or {}
        of_query = expansion["length"] if expansion.get("strategy") == "fixed" else reads.query_length
        self._query_tokens = int(of_query or longest) - around
        self._passage_tokens = int(reads.document_length or longest) - around
        self._cache = TextCache[torch.Tensor](cache_bytes)
        self.info = RankerInfo(
            kind="late-interaction",
            model_id=model_id(checkpoint),
            model_revision=sha256_of_files(weight_files(checkpoint)),
            template_sha256="",
            max_window_size=_MOST_PASSAGES,
            score_kind=ScoreKind.POINTWISE,
            supports_batching=True,
            max_passage_tokens=self._passage_tokens,
            max_window_tokens=_MOST_PASSAGES * self._passage_tokens,
            precision=computed,
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Sanitizes the texts (divides special tokens), and finds passages that are longer than the model reads."""
        texts = [self._read_part(passage.text) for passage in passages]
        pairs, of_query = list(zip(passages, texts, strict=True)), self._read_part(query.text)
        is_cut = query.is_truncated or self._count(of_query) > self._query_tokens
        return PreparedTexts(
            replace(query, text=of_query, is_truncated=is_cut),
            tuple(with_text(passage, text) for passage, text in pairs),
            tuple(passage.doc_id for passage, text in pairs if self._count(text) > self._passage_tokens),
        )

    def encode(self, window: Window) -> Window:
        """Divides the window into batches of passages of similar lengths."""
        lengths = [min(self._count(passage.text), self._passage_tokens) for passage in window.passages]
        query, scores = list[torch.Tensor](), dict[int, float]()
        batches = tuple(
            PassageBatch(window, tuple(rows), sum(lengths[row] for row in rows), query, scores)
            for rows in batches_by_length(lengths, batch_tokens(self._device.type))
        )
        return replace(window, tokens=sum(lengths), parts=batches)

    @translate_out_of_memory()
    def score(self, parts: Sequence[PassageBatch]) -> list[WindowRanking | None]:
        """Scores batches of passages, and puts the scores of a window in the order of its passages."""
        return [self._score(batch) for batch in parts]

    def _score(self, batch: PassageBatch) -> WindowRanking | None:
        passages, texts = batch.window.passages, [batch.window.passages[position].text for position in batch.positions]
        if not batch.query:
            batch.query.extend(self._encoded(self._model.encode_query, [batch.window.query.text]))
        for position, vectors in zip(batch.positions, self._vectors(texts), strict=True):
            cosines = batch.query[0] @ vectors.T  # (tokens of the query, tokens of the passage)
            batch.scores[position] = float(cosines.amax(dim=1).sum()) if len(vectors) else 0.0
        n = len(passages)
        return WindowRanking(tuple(batch.scores[position] for position in range(n))) if len(batch.scores) == n else None

    def _vectors(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Returns (T, D) vectors of each text, from the cache if they are there."""
        found = {text: vectors for text in texts if (vectors := self._cache.get(text)) is not None}
        new = [text for text in dict.fromkeys(texts) if text not in found]
        for text, vectors in zip(new, self._encoded(self._model.encode_document, new) if new else [], strict=True):
            self._cache.keep(text, vectors, vectors.nbytes)
            found[text] = vectors
        return [found[text] for text in texts]

    @torch.inference_mode()
    def _encoded(self, encode: Any, texts: Sequence[str]) -> list[torch.Tensor]:
        """Returns (T, D) vectors of each text, on the CPU."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            vectors = encode(list(texts), batch_size=len(texts), show_progress_bar=False, convert_to_numpy=False)
        return [one.float().cpu() for one in vectors]

    def _count(self, text: str) -> int:
        return len(self._tokens.ids(text))

    def _read_part(self, text: str) -> str:
        return self._divide_special_tokens(beginning(text, self._passage_tokens, self._count))
