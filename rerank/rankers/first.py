"""FIRST (Reddy et al., EMNLP 2024): one forward pass a window; the logits of the identifiers are the scores.

The prompt ends with an opening bracket; the model's next token would be the identifier of the best passage. Its
log-probabilities over the window's identifiers rank all of them, and nothing is generated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from rerank.config import Precision
from rerank.models.last_token import IdentifierHead, translate_out_of_memory
from rerank.models.loading import load_causal_lm, pick_device
from rerank.models.packing_probe import make_last_token_reader
from rerank.prompting.identifiers import IdentifierKind, derive_identifiers
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import load_template
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Prepared, Query, ScoreKind, Window, WindowRanking

#: What a passage without content says, when the prior of the identifiers is measured.
_NO_CONTENT = "N/A"


class FirstRanker:
    """Ranks windows by the identifier logits of a causal LM.

    Args:
        checkpoint: a folder with a causal LM, or a LoRA adapter.
        template: name or path of a prompt template.
        identifiers: letters or numbers.
        calibration: `content_free` subtracts the log-prior of the identifiers, measured once for each window size on
            passages without content (CapCal, arXiv 2604.10150, without its entropy weights).
        permutations: how often a window is read, in seeded orders after the first; log-probabilities are averaged.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.
        passage_tokens: the most tokens of a passage that are shown, as in training; 0: as many as fit.

    Raises:
        CheckpointError: no causal LM, or too few identifiers.
        ConfigError: no such template.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str,
        identifiers: IdentifierKind = IdentifierKind.LETTERS,
        calibration: Literal["none", "content_free"] = "none",
        permutations: int = 1,
        device: str = "auto",
        precision: Precision = "auto",
        passage_tokens: int = 0,
    ) -> None:
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        loaded = load_template(template)
        self._renderer = ListwiseRenderer(loaded, lm.tokenizer, lm.context_tokens, 1, passage_tokens)
        prompt_end = self._renderer.text(Query("query"), ["A"], ["passage"])[-16:]
        self._identifiers = derive_identifiers(lm.tokenizer, identifiers, prompt_end)
        lm.model.set_output_embeddings(
            IdentifierHead(lm.model.get_output_embeddings(), self._identifiers.token_ids).to(self._device)
        )
        self._reader = make_last_token_reader(lm.model, lm.autocast)
        self._calibrated = calibration == "content_free"
        self._permutations = permutations
        self._prior = cache(self._measure_prior)
        self.info = RankerInfo(
            kind="first",
            model_id=checkpoint.name,
            model_revision=lm.revision,
            template_sha256=loaded.sha256,
            max_window_size=len(self._identifiers),
            score_kind=ScoreKind.WINDOW_LOG_PROB,
            batching=self._reader.batching,
            on_accelerator=self._device.type == "cuda",
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        return self._renderer.prepared(query, passages)

    def tokens(self, window: Window) -> int:
        return self._permutations * (len(self._renderer.prompt(window, self._identifiers.texts).token_ids) + 1)

    @translate_out_of_memory()
    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        """Log-probabilities over the window's n identifiers, in float32."""
        orders = [order for window in windows for order in _orders(len(window.passages), self._permutations)]
        readings = [window for window in windows for _ in range(self._permutations)]
        reordered = [
            replace(window, passages=tuple(window.passages[place] for place in order))
            for window, order in zip(readings, orders, strict=True)
        ]
        prompts = [self._renderer.prompt(window, self._identifiers.texts) for window in reordered]
        log_probs = self._log_probs([prompt.token_ids for prompt in prompts], [len(order) for order in orders])
        rankings = []
        for start in range(0, len(orders), self._permutations):
            chunk = range(start, start + self._permutations)
            scores = torch.stack([_in_window_order(log_probs[i], orders[i]) for i in chunk]).mean(dim=0)
            cut = {orders[i][place] for i in chunk for place in prompts[i].truncated}
            rankings.append(WindowRanking(tuple(scores.tolist()), truncated=tuple(sorted(cut))))
        return rankings

    def _log_probs(self, prompts: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[torch.Tensor]:
        """For each prompt, (n,) log-probabilities of its identifiers, calibrated where that was asked for."""
        logits = self._logits([[*prompt, self._identifiers.bracket_id] for prompt in prompts])
        log_probs = [torch.log_softmax(row[:size], dim=0) for row, size in zip(logits, sizes, strict=True)]
        if not self._calibrated:
            return log_probs
        return [torch.log_softmax(own - self._prior(len(own)), dim=0) for own in log_probs]

    def _logits(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """(B, identifiers) float32 logits behind the last token of each sequence."""
        return self._reader.read([torch.tensor(sequence, device=self._device) for sequence in sequences]).cpu()

    def _measure_prior(self, n: int) -> torch.Tensor:
        """(n,) log-probabilities of the identifiers when no passage says anything."""
        window = Window(Query(_NO_CONTENT), tuple(Passage(str(place), _NO_CONTENT) for place in range(n)))
        prompt = self._renderer.prompt(window, self._identifiers.texts).token_ids
        logits = self._logits([[*prompt, self._identifiers.bracket_id]])[0]
        return torch.log_softmax(logits[:n], dim=0)


def _orders(n: int, permutations: int) -> list[list[int]]:
    """The orders in which a window is read: its own, then shuffled ones, the same for every window of n passages."""
    orders = [list(range(n))]
    for seed in range(1, permutations):
        orders.append(random.Random(seed).sample(range(n), n))
    return orders


def _in_window_order(scores: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Scores of a shuffled reading, put back into the window's own order."""
    restored = torch.empty_like(scores)
    restored[torch.tensor(order)] = scores
    return restored
