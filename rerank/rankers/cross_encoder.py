"""Cross-encoder: scores each passage by a model that reads the query and this one passage (Nogueira and Cho 2019).

The model is any that sentence-transformers' `CrossEncoder` loads; it scores as `CrossEncoder.predict` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rerank.checkpoints.manifest import model_id
from rerank.config import Precision
from rerank.errors import InvalidRequest
from rerank.models.batches import GPU_BATCH_TOKENS, batches_by_length
from rerank.models.cross_encoder import Pair, PairScorer
from rerank.models.memory import fitting_tokens, translate_out_of_memory
from rerank.prompting.sanitize import markup_divider
from rerank.prompting.tokens import beginning, ending, first_tokens
from rerank.rankers.base import Ranker, RankerInfo
from rerank.types import Passage, Prepared, Query, ScoreKind, Window, WindowRanking, with_text

_MOST_PASSAGES = 1000
#: The least tokens that a query must leave for the passage.
_LEAST_PASSAGE_TOKENS = 16
#: Tokens of a batch of pairs; other requests take their turns between batches.
_CPU_BATCH_TOKENS = 512
#: Tokens of the pairs that measure the memory of a batch on a GPU, and the most tokens of one pair.
_MEASURED_TOKENS, _MEASURED_PAIR_TOKENS = 2048, 512


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Pairs of a query and some passages of a window, which are scored together.

    Attributes:
        places: of the passages in the window.
        tokens: of all pairs.
        scores: place → score of the passages that were scored so far; all batches of the window share it.
    """

    window: Window
    places: tuple[int, ...]
    pairs: tuple[Pair, ...]
    tokens: int
    scores: dict[int, float]


class CrossEncoderRanker(Ranker):
    """Scores passages by a cross-encoder.

    Args:
        checkpoint, device, precision: see PairScorer.

    Raises:
        CheckpointError: see PairScorer.
    """

    def __init__(self, checkpoint: Path, device: str = "auto", precision: Precision = "auto") -> None:
        self._scorer = scorer = PairScorer(checkpoint, device, precision)
        self._divide_special_tokens = markup_divider(scorer.tokenizer)
        on_gpu = scorer.device.type == "cuda"
        self._batch_tokens = self._fitting_tokens() if on_gpu else _CPU_BATCH_TOKENS
        template = scorer.chat_template
        self.info = RankerInfo(
            kind="cross-encoder",
            model_id=model_id(checkpoint),
            model_revision=scorer.revision,
            template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else "",
            max_window_size=_MOST_PASSAGES,
            score_kind=ScoreKind.POINTWISE_PROBABILITY if scorer.gives_probabilities else ScoreKind.POINTWISE,
            supports_batching=True,
            relevance="score",
            max_passage_tokens=scorer.max_tokens,
            max_window_tokens=scorer.max_tokens * _MOST_PASSAGES,
            gpu_batch_tokens=self._batch_tokens if on_gpu else 0,
            precision=scorer.precision,
            reads_instruction=scorer.reads_instruction,
        )

    def _fitting_tokens(self) -> int:
        """Returns the tokens of a batch that the memory of the GPU holds."""
        (pair,) = self._scorer.render("a", ["b " * min(self._scorer.max_tokens, _MEASURED_PAIR_TOKENS)])
        pairs = [pair] * max(1, _MEASURED_TOKENS // len(pair["input_ids"]))
        tokens = sum(len(pair["input_ids"]) for pair in pairs)
        return fitting_tokens(partial(self._scorer.scores, pairs), tokens, self._scorer.device, GPU_BATCH_TOKENS)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Divides special tokens in the texts, and cuts off what is never read.

        Raises:
            InvalidRequest: the instruction leaves too little room for query and passages.
        """
        texts = {t: self._divide_special_tokens(self._read_part(t)) for t in {passage.text for passage in passages}}
        prepared = tuple(with_text(passage, texts[passage.text]) for passage in passages)
        divided = replace(
            query,
            text=self._divide_special_tokens(self._read_part(query.text)),
            instruction=self._divide_special_tokens(query.instruction),
        )
        return Prepared(self._fitting(divided, texts.values()), prepared)

    def _fitting(self, query: Query, passages: Iterable[str]) -> Query:
        """Cuts a query that leaves a passage no room in a chat; of two bare texts, the library cuts the longer."""
        tokens, most = self._scorer.count(query.text), self._scorer.max_tokens
        (empty,) = self._scorer.render(query.text, [""], query.instruction, cut=False)
        room = most - (len(empty["input_ids"]) - tokens)
        if room < 2 * _LEAST_PASSAGE_TOKENS:
            raise InvalidRequest(
                "query.instruction",
                f"prompt and instruction take {most - room} of the {most} tokens that {self.info.model_id} reads; "
                "shorten the instruction",
                {"tokens": str(most - room), "limit": str(most)},
            )
        if tokens <= room // 2:
            return query
        if self._scorer.chat_template:
            return replace(query, text=first_tokens(query.text, room // 2, self._scorer.token_ends), is_truncated=True)
        longest = max(map(self._scorer.count, passages), default=0)
        return replace(query, is_truncated=query.is_truncated or tokens + longest > room)

    def encode(self, window: Window) -> Window:
        """Renders one pair of the query and each passage, as the model's files say, in batches of similar lengths."""
        query, texts = window.query, [passage.text for passage in window.passages]
        pairs = self._scorer.render(query.text, texts, query.instruction)
        full = [place for place, pair in enumerate(pairs) if len(pair["input_ids"]) >= self._scorer.max_tokens]
        uncut = self._scorer.render(query.text, [texts[place] for place in full], query.instruction, cut=False)
        cut = [len(pair["input_ids"]) > self._scorer.max_tokens for pair in uncut]
        truncated = tuple(place for place, is_cut in zip(full, cut, strict=True) if is_cut)
        lengths = [len(pair["input_ids"]) for pair in pairs]
        scores = dict[int, float]()
        batches = tuple(
            PairBatch(window, tuple(rows), tuple(pairs[row] for row in rows), sum(lengths[row] for row in rows), scores)
            for rows in batches_by_length(lengths, self._batch_tokens)
        )
        return replace(window, tokens=sum(lengths), truncated=truncated, divided=batches)

    @translate_out_of_memory()
    def score(self, parts: Sequence[PairBatch]) -> list[WindowRanking | None]:
        """Scores batches of pairs, and puts the scores of a window in the order of its passages."""
        return [self._score(batch) for batch in parts]

    def _score(self, batch: PairBatch) -> WindowRanking | None:
        batch.scores.update(zip(batch.places, self._scorer.scores(batch.pairs), strict=True))
        n = len(batch.window.passages)
        return WindowRanking(tuple(batch.scores[place] for place in range(n))) if len(batch.scores) == n else None

    def _read_part(self, text: str) -> str:
        """Cuts off what can never be read: the end of a text, or its beginning where the tokenizer truncates there."""
        part = ending if self._scorer.tokenizer.truncation_side == "left" else beginning
        return part(text, self._scorer.max_tokens, self._scorer.count)
