"""FIRST (Reddy et al., EMNLP 2024): ranks a window by the logits of its identifiers, in one forward pass.

The prompt ends with an opening bracket, so the model's next token would be the identifier of the best passage. Its
log-probabilities over the identifiers of the window rank all passages; nothing is generated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rerank.checkpoints.manifest import model_id
from rerank.config import Precision
from rerank.models.last_token import IdentifierHead, TwoTokenHead, translate_out_of_memory
from rerank.models.loading import load_causal_lm, pick_device
from rerank.models.packing_check import make_last_token_reader
from rerank.prompting.identifiers import IdentifierKind, derive_identifiers, word_start_ids
from rerank.prompting.templates import Template
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import EncodedWindow, Passage, Query, ScoreKind, Window, WindowRanking

#: The text of query and passages when the prior of the identifiers is measured.
_NO_CONTENT = "N/A"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScoring:
    """Settings that turn the logits of a window's identifiers into the scores of its passages.

    Attributes:
        identifier_tokens: `bare` reads the logit of "A", `max` the larger one of "A" and "▁A", its token at the start
            of a word.
        calibration: `content_free` subtracts the log-prior of the identifiers, which is measured once per window size
            on passages without content (CapCal, arXiv 2604.10150, without its entropy weights).
        permutations: number of orders in which a window is read: its own and shuffled ones with fixed seeds; the
            log-probabilities are averaged.
        order_prior: log-prior of the window's order, in nats per place: the passage at place i (0, 1, …) is scored by
            log softmax(log p(i) - order_prior · i), where p is the model's probability. 0: all places alike, as in a
            window whose order carries no meaning.
    """

    identifier_tokens: Literal["bare", "max"] = "bare"
    calibration: Literal["none", "content_free"] = "none"
    permutations: int = 1
    order_prior: float = 0.0


class FirstPrompts(TextPrompts):
    """FIRST without its model: the prompts of windows, and the rankings of the logits of their identifiers.

    Args:
        tokenizer: of the model.
        context_tokens: the most tokens of a prompt and its identifier.
        template: a prompt template, or its name or path.
        identifiers: letters or numbers.
        scoring: how logits become scores.
        passage_tokens: the maximum number of tokens shown per passage, as in training; 0: as many as fit.

    Attributes:
        identifiers: the identifiers of a window's passages, in order.
        other_ids: the second token of each identifier; none if one is read.

    Raises:
        CheckpointError: the tokenizer has too few single-token identifiers, or the chat template opens a reasoning.
        ConfigError: there is no such template.
    """

    kind = "first"
    score_kind = ScoreKind.WINDOW_LOG_PROB

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        template: str | Template,
        identifiers: IdentifierKind,
        scoring: FirstScoring,
        passage_tokens: int,
    ) -> None:
        super().__init__(tokenizer, context_tokens, template, answer_tokens=1, passage_tokens=passage_tokens)
        self.identifiers = derive_identifiers(tokenizer, identifiers, self.renderer.prompt_end)
        self.max_window_size = len(self.identifiers)
        self.max_window_tokens = context_tokens * scoring.permutations
        self.other_ids = word_start_ids(tokenizer, self.identifiers) if scoring.identifier_tokens == "max" else ()
        self._permutations, self._order_prior = scoring.permutations, scoring.order_prior

    def encode(self, window: Window) -> EncodedWindow:
        """One prompt per permutation, each ending with the opening bracket of the answer."""
        prompts, truncated = list[tuple[int, ...]](), set[int]()
        for order in window_orders(len(window.passages), self._permutations):
            reordered = replace(window, passages=tuple(window.passages[place] for place in order))
            prompt = self.renderer.prompt(reordered, self.identifiers.texts)
            prompts.append((*prompt.token_ids, self.identifiers.bracket_id))
            truncated.update(order[place] for place in prompt.truncated)
        return EncodedWindow(window, tuple(prompts), sum(map(len, prompts)), tuple(sorted(truncated)))

    def ranking(self, window: Window, logits: torch.Tensor, prior: torch.Tensor | None) -> WindowRanking:
        """The ranking of a window by (permutations, identifiers) logits, less the (n,) log-prior if there is one."""
        n = len(window.passages)
        log_probs = torch.log_softmax(logits[:, :n], dim=1)
        if prior is not None:
            log_probs = torch.log_softmax(log_probs - prior, dim=1)
        places = torch.tensor(window_orders(n, self._permutations)).argsort(dim=1)  # of each passage in each order
        mean = log_probs.gather(1, places).mean(dim=0)
        if self._order_prior and window.is_ordered:
            mean = torch.log_softmax(mean - self._order_prior * torch.arange(n), dim=0)
        return WindowRanking(tuple(mean.tolist()))

    def prior_prompt(self, n: int) -> tuple[int, ...]:
        """The prompt of n passages without content, after which the log-prior of the identifiers is measured."""
        empty = tuple(Passage(str(place), _NO_CONTENT) for place in range(n))
        return self.encode(Window(Query(_NO_CONTENT), empty)).prompts[0]


class FirstRanker(FirstPrompts):
    """Ranks windows by the identifier logits of a causal LM.

    Args:
        checkpoint: a folder with a causal LM, or a LoRA adapter.
        template, identifiers, passage_tokens: see FirstPrompts.
        scoring: how logits become scores; None: all defaults.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

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
        super().__init__(lm.tokenizer, lm.context_tokens, template, identifiers, scoring, passage_tokens)
        self._replace_head(lm.model)
        self._reader, self._model_config = make_last_token_reader(lm.model, lm.precision), lm.model.config
        self._calibrated = scoring.calibration == "content_free"
        self._prior = cache(self._measure_prior)
        described = self.describe(model_id(checkpoint), lm.revision)
        on_accelerator = self._device.type == "cuda"
        described = replace(described, precision=lm.precision)
        self.info = replace(described, batching=self._reader.batching, on_accelerator=on_accelerator)

    @translate_out_of_memory()
    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """Log-probabilities over the n identifiers of each window, in float32, averaged over its permutations."""
        logits = self._logits([prompt for encoded in windows for prompt in encoded.prompts])
        return [
            self.ranking(encoded.window, rows, self._prior(len(encoded.window.passages)) if self._calibrated else None)
            for encoded, rows in zip(windows, logits.split(self._permutations), strict=True)
        ]

    def call_between_layers(self, function: Callable[[], None]) -> None:
        """See InterruptibleRanker."""
        self._reader.between_layers = function

    def _replace_head(self, model: PreTrainedModel) -> None:
        """Makes the model compute the logits of the identifiers alone, instead of those of the whole vocabulary."""
        vocabulary, ids = model.get_output_embeddings(), self.identifiers.token_ids
        head = TwoTokenHead(vocabulary, ids, self.other_ids) if self.other_ids else IdentifierHead(vocabulary, ids)
        model.set_output_embeddings(head.to(self._device))

    def _logits(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """(B, identifiers) float32 logits after the last token of each prompt."""
        return self._reader.read([torch.tensor(prompt, device=self._device) for prompt in prompts]).cpu()

    def _measure_prior(self, n: int) -> torch.Tensor:
        """(n,) log-probabilities of the identifiers for n passages without content."""
        return torch.log_softmax(self._logits([self.prior_prompt(n)])[0, :n], dim=0)


def window_orders(n: int, permutations: int) -> list[list[int]]:
    """The orders in which n passages are read: as given, then shuffled by fixed seeds."""
    orders = [list(range(n))]
    for seed in range(1, permutations):
        orders.append(random.Random(seed).sample(range(n), n))
    return orders
