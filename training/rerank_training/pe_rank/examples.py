"""Training batches of PE-Rank: prompts as serving renders them, and the encoder's vectors of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rerank.errors import ConfigError
from rerank.prompting.templates import Template
from rerank.prompting.vector_prompts import VectorPrompts
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable
from rerank_training.pe_rank.model import CHOSEN_SLOT
from rerank_training.trainer.windows import relevance_and_mask


@dataclass(frozen=True)
class PECollator:
    """Collates windows into a batch.

    The batch holds `input_ids` (B, T) with slots for vectors, padded on the right; `last_index` (B,), the index of the
    prompt's last position; `vectors` (B, 1 + N, E) of query and passages, or (B, N, E) if the prompt has no slot for
    the query; `relevance` and `mask` (B, N), False at the padding of short windows; `order` (B, N), the positions of
    the passages from best to worst, ties in window order. With `text_prompts`, also `text_input_ids` and
    `text_last_index`.

    Args:
        prompts: as serving renders them.
        passages: vectors of all passages in the windows.
        queries: vectors of all queries; None if the prompts show none.
        context_tokens: largest number of positions that the model reads.
        text_prompts: the same with the text after each vector, if these are trained too.
        with_choices: append all passages but the last to the prompt, best first, for dynamic decoding.
    """

    prompts: VectorPrompts
    passages: VectorTable
    queries: VectorTable | None
    context_tokens: int
    text_prompts: VectorPrompts | None = None
    with_choices: bool = False

    def __call__(self, windows: Sequence[TrainingList]) -> dict[str, Tensor]:
        """Raises: ConfigError when a window needs more positions than the model reads."""
        batch = {
            "vectors": pad_sequence([self._vectors(window) for window in windows], batch_first=True),
            **relevance_and_mask(windows),
            "order": _orders(windows),
            **self._positions(self.prompts, windows),
        }
        if self.text_prompts is not None:
            with_text = self._positions(self.text_prompts, windows)
            batch |= {f"text_{name}": tensor for name, tensor in with_text.items()}
        return batch

    def _positions(self, prompts: VectorPrompts, windows: Sequence[TrainingList]) -> dict[str, Tensor]:
        prompt_rows = [prompt_ids(prompts, window) for window in windows]
        rows = [ids + self._choices(len(window.passages)) for ids, window in zip(prompt_rows, windows, strict=True)]
        longest, window = max(zip(rows, windows, strict=True), key=lambda pair: len(pair[0]))
        if len(longest) > self.context_tokens:
            raise ConfigError(
                f"query {window.query.query_id} with {len(window.passages)} passages needs {len(longest)} positions, "
                f"the model reads {self.context_tokens}; lower --window-size or --passage-tokens"
            )
        return {
            "input_ids": pad_sequence([torch.tensor(row) for row in rows], batch_first=True),
            "last_index": torch.tensor([len(ids) - 1 for ids in prompt_rows]),
        }

    def _choices(self, n: int) -> list[int]:
        return [CHOSEN_SLOT] * (n - 1) if self.with_choices else []

    def _vectors(self, window: TrainingList) -> Tensor:
        passages = self.passages([passage.text for passage in window.passages])
        query = passages[:0] if self.queries is None else self.queries([window.query.text])
        return torch.from_numpy(np.concatenate([query, passages]))


def prompt_ids(prompts: VectorPrompts, window: TrainingList) -> list[int]:
    """Token ids and slots of a window's prompt, as serving renders it."""
    passages = window.passages
    if prompts.reads_text:
        passages = tuple(replace(passage, text=prompts.shown_text(passage)) for passage in passages)
    return list(prompts.token_ids(prompts.sanitize(window.query), passages))


def with_text(template: Template) -> Template:
    """The template with each passage's text after its vector.

    Raises:
        ConfigError: the template shows the text already.
    """
    if "{text}" in template.body:
        raise ConfigError(
            "the template shows {text} already, so that a view with text and vectors adds nothing; set "
            "--text-weight and --kl-weight to 0"
        )
    return replace(template, body=template.body.replace("{candidate}", "{candidate} {text}"))


def _orders(windows: Sequence[TrainingList]) -> Tensor:
    """(B, N) positions by falling relevance, padding last."""
    relevance = [torch.tensor(window.relevance) for window in windows]
    values = pad_sequence(relevance, batch_first=True, padding_value=-torch.inf)
    return values.argsort(dim=1, descending=True, stable=True)
