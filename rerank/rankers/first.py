"""FIRST (Reddy et al., EMNLP 2024): ranks a window by the logits of its identifiers, in one forward pass.

The prompt ends with an opening bracket, so the model's next token would be the identifier of the best passage. Its
log-probabilities over the identifiers of the window rank all passages; nothing is generated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from rerank.config import Precision
from rerank.manifest import model_id
from rerank.models.last_token import IdentifierHead, TwoTokenHead, translate_out_of_memory
from rerank.models.loading import CausalLM, load_causal_lm, pick_device
from rerank.models.packing_probe import make_last_token_reader
from rerank.prompting.identifiers import IdentifierKind, Identifiers, derive_identifiers, word_start_ids
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import TEXT_FIELDS, Template, load_template
from rerank.rankers.base import RankerInfo
from rerank.types import EncodedWindow, Passage, Prepared, Query, ScoreKind, Window, WindowRanking

#: The text of query and passages when the prior of the identifiers is measured.
_NO_CONTENT = "N/A"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScoring:
    """How the logits of a window's identifiers become the scores of its passages.

    Attributes:
        identifier_tokens: `bare` reads the logit of "A", `max` the larger one of "A" and "▁A", its token at the start
            of a word.
        calibration: `content_free` subtracts the log-prior of the identifiers, which is measured once per window size
            on passages without content (CapCal, arXiv 2604.10150, without its entropy weights).
        permutations: number of orders in which a window is read: its own and shuffled ones with fixed seeds; the
            log-probabilities are averaged.
        order_prior: log-prior of the window's order, in nats per place: the passage at place i (0, 1, …) is scored by
            log softmax(log p(i) - order_prior · i), where p is the model's probability. 0: all places alike.
    """

    identifier_tokens: Literal["bare", "max"] = "bare"
    calibration: Literal["none", "content_free"] = "none"
    permutations: int = 1
    order_prior: float = 0.0


class FirstRanker:
    """Ranks windows by the identifier logits of a causal LM.

    Args:
        checkpoint: a folder with a causal LM, or a LoRA adapter.
        template: a prompt template, or its name or path.
        identifiers: letters or numbers.
        scoring: how logits become scores; None: all defaults.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.
        passage_tokens: the maximum number of tokens shown per passage, as in training; 0: as many as fit.

    Raises:
        CheckpointError: the checkpoint holds no causal LM, or its tokenizer has too few single-token identifiers.
        ConfigError: there is no such template.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str | Template,
        identifiers: IdentifierKind = IdentifierKind.LETTERS,
        scoring: FirstScoring | None = None,
        device: str = "auto",
        precision: Precision = "auto",
        passage_tokens: int = 0,
    ) -> None:
        scoring = scoring or FirstScoring()
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        loaded = load_template(template, TEXT_FIELDS)
        self._renderer = ListwiseRenderer(loaded, lm.tokenizer, lm.context_tokens, 1, passage_tokens)
        self._renderer.refuse_reasoning()
        prompt_end = self._renderer.prompt_end
        self._identifiers = derive_identifiers(lm.tokenizer, identifiers, prompt_end)
        lm.model.set_output_embeddings(_head(lm, self._identifiers, scoring).to(self._device))
        self._reader = make_last_token_reader(lm.model, lm.autocast)
        self._calibrated = scoring.calibration == "content_free"
        self._permutations = scoring.permutations
        self._order_prior = scoring.order_prior
        self._prior = cache(self._measure_prior)
        self.info = RankerInfo(
            kind="first",
            model_id=model_id(checkpoint),
            model_revision=lm.revision,
            template_sha256=loaded.sha256,
            warning=self._renderer.warning,
            max_window_size=len(self._identifiers),
            score_kind=ScoreKind.WINDOW_LOG_PROB,
            batching=self._reader.batching,
            max_passage_tokens=self._renderer.passage_tokens,
            max_window_tokens=lm.context_tokens * scoring.permutations,
            on_accelerator=self._device.type == "cuda",
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        return self._renderer.prepare(query, passages)

    def encode(self, window: Window) -> EncodedWindow:
        """One prompt per permutation, each ending with the opening bracket of the answer."""
        prompts, truncated = list[tuple[int, ...]](), set[int]()
        for order in _orders(len(window.passages), self._permutations):
            reordered = replace(window, passages=tuple(window.passages[place] for place in order))
            prompt = self._renderer.prompt(reordered, self._identifiers.texts)
            prompts.append((*prompt.token_ids, self._identifiers.bracket_id))
            truncated.update(order[place] for place in prompt.truncated)
        return EncodedWindow(window, tuple(prompts), sum(map(len, prompts)), tuple(sorted(truncated)))

    @translate_out_of_memory()
    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """Log-probabilities over the n identifiers of each window, in float32, averaged over its permutations."""
        logits = self._logits([prompt for encoded in windows for prompt in encoded.prompts])
        per_window = logits.split(self._permutations)  # (permutations, identifiers) each
        return [
            self._ranking(len(encoded.window.passages), rows) for encoded, rows in zip(windows, per_window, strict=True)
        ]

    def _ranking(self, n: int, logits: torch.Tensor) -> WindowRanking:
        """The ranking of a window of n passages from its (permutations, identifiers) logits."""
        scores = [
            _in_window_order(self._log_probs(row[:n]), order)
            for row, order in zip(logits, _orders(n, self._permutations), strict=True)
        ]
        mean = torch.stack(scores).mean(dim=0)
        if self._order_prior:
            mean = torch.log_softmax(mean - self._order_prior * torch.arange(n), dim=0)
        return WindowRanking(tuple(mean.tolist()))

    def _log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """(n,) log-probabilities from the logits of n identifiers, calibrated if so configured."""
        log_probs = torch.log_softmax(logits, dim=0)
        return torch.log_softmax(log_probs - self._prior(len(logits)), dim=0) if self._calibrated else log_probs

    def _logits(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """(B, identifiers) float32 logits after the last token of each prompt."""
        return self._reader.read([torch.tensor(prompt, device=self._device) for prompt in prompts]).cpu()

    def _measure_prior(self, n: int) -> torch.Tensor:
        """(n,) log-probabilities of the identifiers for n passages without content."""
        empty = tuple(Passage(str(place), _NO_CONTENT) for place in range(n))
        prompt = self.encode(Window(Query(_NO_CONTENT), empty)).prompts[0]
        return torch.log_softmax(self._logits([prompt])[0, :n], dim=0)


def _head(lm: CausalLM, identifiers: Identifiers, scoring: FirstScoring) -> IdentifierHead:
    """The head that computes the logits of the identifiers alone."""
    head = lm.model.get_output_embeddings()
    if scoring.identifier_tokens == "max":
        return TwoTokenHead(head, identifiers.token_ids, word_start_ids(lm.tokenizer, identifiers))
    return IdentifierHead(head, identifiers.token_ids)


def _orders(n: int, permutations: int) -> list[list[int]]:
    """The orders in which n passages are read: as given, then shuffled by fixed seeds."""
    orders = [list(range(n))]
    for seed in range(1, permutations):
        orders.append(random.Random(seed).sample(range(n), n))
    return orders


def _in_window_order(scores: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Scores of the passages in `order`, put back into the window's order."""
    restored = torch.empty_like(scores)
    restored[torch.tensor(order)] = scores
    return restored
