"""Windows → what PE-Rank is trained on: the prompts that serving would feed, and the encoder's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rerank.commands.display import indexing_progress
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.prompting.templates import Template
from rerank.prompting.vector_prompts import VectorPrompts
from rerank.types import Matrix
from rerank_training.data import TrainingList
from rerank_training.first_examples import padded
from rerank_training.pe_model import CHOSEN_SLOT

_CHUNK = 512


class VectorTable:
    """The encoder's unit vector of each distinct text, made once, with a progress bar."""

    def __init__(self, encoder: Encoder, texts: Sequence[str], console: Console) -> None:
        distinct = list(dict.fromkeys(texts))
        self._row = {text: row for row, text in enumerate(distinct)}
        self._vectors = np.empty((len(distinct), encoder.id.dimension), dtype=np.float32)
        with indexing_progress(console) as progress:
            for start in range(0, len(distinct), _CHUNK):
                chunk = distinct[start : start + _CHUNK]
                self._vectors[start : start + len(chunk)] = encoder.encode(chunk)
                progress.report("vectors", start + len(chunk), len(distinct))

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """(len(texts), E)."""
        vectors: Matrix = self._vectors[[self._row[text] for text in texts]]
        return vectors


@dataclass(frozen=True)
class PECollator:
    """Windows → a batch.

    The batch holds `input_ids` (B, T) with slots for vectors, padded on the right; `read_at` (B,), the place of the
    prompt's last position; `vectors` (B, 1 + N, E) of query and passages, or (B, N, E) where the prompt does not read
    the query's; `relevance` and `mask` (B, N), False behind short windows; `order` (B, N), the passages' places from
    best to worst, equals as they stand. With `text_prompts` also `text_input_ids` and `text_read_at`.

    Args:
        prompts: those of serving.
        text_prompts: the same with text beside each vector, if that is trained too.
        with_choices: put all passages but the last behind the prompt, best first, for dynamic decoding.
        context_tokens: what the model can read.
    """

    prompts: VectorPrompts
    vectors: VectorTable
    context_tokens: int
    text_prompts: VectorPrompts | None = None
    with_choices: bool = False

    def __call__(self, windows: Sequence[TrainingList]) -> dict[str, Tensor]:
        """Raises: ConfigError when a window takes more positions than the model reads."""
        relevance = [torch.tensor(window.relevance) for window in windows]
        batch = {
            "vectors": pad_sequence([self._vectors(window) for window in windows], batch_first=True),
            "relevance": padded([window.relevance for window in windows]),
            "mask": padded([[1.0] * len(window.passages) for window in windows]).bool(),
            "order": _orders(relevance),
            **self._positions(self.prompts, windows),
        }
        if self.text_prompts is not None:
            shown = self._positions(self.text_prompts, windows)
            batch |= {f"text_{name}": tensor for name, tensor in shown.items()}
        return batch

    def _positions(self, prompts: VectorPrompts, windows: Sequence[TrainingList]) -> dict[str, Tensor]:
        asked = [prompt_ids(prompts, window) for window in windows]
        rows = [ids + self._choices(len(window.passages)) for ids, window in zip(asked, windows, strict=True)]
        longest, window = max(zip(rows, windows, strict=True), key=lambda pair: len(pair[0]))
        if len(longest) > self.context_tokens:
            raise ConfigError(
                f"query {window.query.query_id} with {len(window.passages)} passages takes {len(longest)} positions, "
                f"the model reads {self.context_tokens}; lower window_size or passage_text_tokens"
            )
        return {
            "input_ids": pad_sequence([torch.tensor(row) for row in rows], batch_first=True),
            "read_at": torch.tensor([len(ids) - 1 for ids in asked]),
        }

    def _choices(self, n: int) -> list[int]:
        return [CHOSEN_SLOT] * (n - 1) if self.with_choices else []

    def _vectors(self, window: TrainingList) -> Tensor:
        query = [window.query.text] if self.prompts.reads_query_vector else []
        return torch.from_numpy(self.vectors([*query, *(passage.text for passage in window.passages)]))


def prompt_ids(prompts: VectorPrompts, window: TrainingList) -> list[int]:
    """The positions that serving feeds for this window: token ids and slots."""
    passages = window.passages
    if prompts.reads_text:
        passages = tuple(replace(passage, text=prompts.shown_text(passage)) for passage in passages)
    return list(prompts.token_ids(prompts.harmless(window.query), passages))


def texts_of(lists: Sequence[TrainingList], with_queries: bool) -> list[str]:
    """What the encoder must read, with repeats."""
    queries = [item.query.text for item in lists] if with_queries else []
    return queries + [passage.text for item in lists for passage in item.passages]


def beside_vectors(template: Template) -> Template:
    """The template with each passage's text behind its vector.

    Raises:
        ConfigError: the text is shown already.
    """
    if "{text}" in template.body:
        raise ConfigError("the template shows {text} already, so text_weight and kl_weight have no second view; use 0")
    return replace(template, body=template.body.replace("{candidate}", "{candidate} {text}"))


def _orders(relevance: Sequence[Tensor]) -> Tensor:
    """(B, N) places by falling relevance, padding last."""
    values = pad_sequence(list(relevance), batch_first=True, padding_value=-torch.inf)
    return values.argsort(dim=1, descending=True, stable=True)
