"""Permutation generation: a causal LM writes the order of a window as text, "[2] > [1] > …" (RankGPT, RankZephyr).

Generation costs one step of the model per token, where FIRST needs one step per window. The text may leave passages
out, name them twice or name unknown ones, so it is parsed and repaired, and the repairs are counted.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from transformers import PreTrainedTokenizerBase

from rerank.checkpoints.manifest import model_id
from rerank.config import Precision
from rerank.errors import ConfigError
from rerank.models.decode_state import DecodeState
from rerank.models.loading import CausalLM, load_causal_lm, pick_device
from rerank.models.memory import translate_out_of_memory
from rerank.models.precision import compute_in, uses_autocast
from rerank.prompting.identifiers import CLOSE, OPEN, IdentifierKind, alphabet
from rerank.prompting.templates import Template
from rerank.rankers.base import Ranker
from rerank.rankers.permutations import answer_in, parse_permutation
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import DecodeCost, ScoreKind, Window, WindowRanking

#: Largest number of passages in a window. No model was trained to order more in one answer.
_MOST_PASSAGES = 100
#: Number of tokens that an answer may have beyond the permutation itself, such as an end token or a word before it.
_SLACK_TOKENS = 8
#: The same number after reasoning, where line ends, <answer> and a sentence may precede the permutation.
_SLACK_TOKENS_AFTER_THINKING = 64
#: Largest number of tokens for thinking in the self-test, which needs no answer.
_SELF_TEST_TOKENS = 16


class Answer(NamedTuple):
    """The text that a model wrote about a window, and the cost of writing it."""

    text: str
    decode_cost: DecodeCost


class GenerationPrompts(TextPrompts):
    """Renders windows as prompts of permutation generation, and reads the orders in the answers.

    Args:
        tokenizer: the model's tokenizer.
        context_tokens: largest number of tokens of a prompt and its answer.
        template: a prompt template, or its name or path.
        identifiers: letters or numbers; they need not be single tokens.
        thinking_tokens: largest number of tokens of a reasoning before the answer; 0: the model answers at once.

    Raises:
        CheckpointError: the chat template opens a reasoning, and no tokens are left for one.
        ConfigError: there is no such template, or the tokens for thinking leave no room for a prompt.
    """

    kind = "generation"
    score_kind = ScoreKind.RANK

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        template: str | Template,
        identifiers: IdentifierKind,
        thinking_tokens: int = 0,
    ) -> None:
        if thinking_tokens >= context_tokens:
            raise ConfigError(
                f"thinking_tokens {thinking_tokens} leaves no room for a prompt, as the model reads and "
                f"writes {context_tokens} tokens at most; use less, such as {context_tokens // 2}"
            )
        super().__init__(tokenizer, context_tokens, template, thinking_tokens, thinks=thinking_tokens > 0)
        self._thinking_tokens = thinking_tokens
        self._is_exact = self.renderer.template.style.order_tokens == "exact"
        self._slack_tokens = _SLACK_TOKENS_AFTER_THINKING if thinking_tokens else _SLACK_TOKENS
        self._names = alphabet(tokenizer, identifiers)[:_MOST_PASSAGES]
        self.max_window_size, self.max_window_tokens = len(self._names), context_tokens
        self.answer_tokens = cache(self._count_answer_tokens)

    def encode(self, window: Window) -> Window:
        """Renders the prompt, which leaves tokens for the longest reasoning and answer; `tokens` includes these."""
        answer_tokens = self.new_tokens(len(window.passages))
        prompt = self.renderer.prompt(window, self._names, answer_tokens - self._thinking_tokens)
        tokens = len(prompt.token_ids) + answer_tokens
        return replace(window, prompts=(tuple(prompt.token_ids),), tokens=tokens, truncated=prompt.truncated)

    def new_tokens(self, n: int) -> int:
        """Largest number of tokens that the model writes about n passages."""
        return self._thinking_tokens + self.answer_tokens(n)

    def ranking(self, window: Window, written: Answer) -> WindowRanking:
        """Scores n passages by minus their rank in the model's text. Without an answer they keep their order."""
        n, (text, decode_cost) = len(window.passages), written
        answer = answer_in(text, self._thinking_tokens > 0 and self.renderer.opens_reasoning)
        if answer is None:
            return WindowRanking(
                tuple(float(-index) for index in range(n)), is_unanswered=True, decode_cost=decode_cost
            )
        parsed = parse_permutation(answer, self._names[:n], last_chain=self._thinking_tokens > 0)
        scores = [0.0] * n
        for rank, index in enumerate(parsed.permutation):
            scores[index] = float(-rank)
        return WindowRanking(tuple(scores), repairs=parsed.repairs, decode_cost=decode_cost)

    def answer(self, text: str) -> Answer:
        """Returns the answer of an inference server. The tokens are counted here, and their time is unknown."""
        return Answer(text, DecodeCost(len(self._tokenizer.encode(text, add_special_tokens=False))))

    def with_little_thinking(self) -> Self:
        """Returns a copy with a few tokens for thinking, for the self-test."""
        other = copy.copy(self)
        other._thinking_tokens = min(self._thinking_tokens, _SELF_TEST_TOKENS)
        return other

    def fewest_tokens(self, n: int) -> int:
        """Returns the fewest tokens that the model writes about n passages, before which it may not end."""
        return self.answer_tokens(n) if self._is_exact else 0

    def _count_answer_tokens(self, n: int) -> int:
        """Returns the token budget of an answer about n passages."""
        if self._is_exact:
            return max(1, self.renderer.order_tokens(tuple(self._names[:n])))
        answer = " > ".join(f"{OPEN}{name}{CLOSE}" for name in self._names[:n])
        return len(self._tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]) + self._slack_tokens


class GenerationRanker(GenerationPrompts, Ranker):
    """Ranks windows by the permutation that a causal LM generates greedily.

    Args:
        checkpoint: a folder with a causal LM, or a LoRA adapter.
        template, identifiers, thinking_tokens: see GenerationPrompts.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Raises:
        CheckpointError: the checkpoint holds no causal LM.
        ConfigError: see GenerationPrompts.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str | Template,
        identifiers: IdentifierKind = IdentifierKind.NUMBERS,
        device: str = "auto",
        precision: Precision = "auto",
        thinking_tokens: int = 0,
    ) -> None:
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        super().__init__(lm.tokenizer, lm.context_tokens, template, identifiers, thinking_tokens)
        self._autocast = uses_autocast(lm.model, lm.precision)
        if lm.precision != "float32":
            compute_in(lm.model, lm.precision)
        model: Any = lm.model
        last_logits = {"logits_to_keep": 1} if model._supports_logits_to_keep() else {}
        self._forward, self._config = partial(model, **last_logits), model.config
        self._end_ids = _end_ids(lm)
        self._end_tensor = torch.tensor(sorted(self._end_ids), dtype=torch.long, device=self._device)
        self.info = replace(self.describe(model_id(checkpoint), lm.revision), precision=lm.precision)

    @translate_out_of_memory()
    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        """Ranks windows by the text that is generated. Padding would change texts, so windows run one by one."""
        return [self.ranking(one, self._answer(one.prompts[0], len(one.passages))) for one in parts]

    @torch.inference_mode()
    def _answer(self, prompt: Sequence[int], n: int) -> Answer:
        """Returns the text that the model writes greedily after the prompt, up to its end token or the token budget.

        The model's settings of temperature and repetition penalty are ignored, because an order repeats its brackets.
        """
        fewest, most, ids = self.fewest_tokens(n), self.new_tokens(n), torch.tensor(prompt, device=self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            state = DecodeState(self._forward, self._config, [ids], most)
            written = [self._best_token(state.outputs[0], is_open=fewest > 0)]
            start_s = time.perf_counter()
            while written[-1] not in self._end_ids and len(written) < most:
                state.decode_step(torch.tensor(written[-1:], device=self._device))
                written.append(self._best_token(state.outputs[0], is_open=len(written) < fewest))
        thinks = self._thinking_tokens > 0  # the marks of a reasoning may be special tokens
        text = str(self._tokenizer.decode(written, skip_special_tokens=not thinks))
        return Answer(text, DecodeCost(len(written), (time.perf_counter() - start_s) * 1000))

    def _best_token(self, logits: torch.Tensor, is_open: bool) -> int:
        """Returns the most probable token; while the answer must go on, the most probable one that does not end it."""
        if is_open:
            logits = logits.index_fill(-1, self._end_tensor, -torch.inf)
        return int(logits.argmax())


def _end_ids(lm: CausalLM) -> set[int]:
    """Returns the tokens that end an answer: those in the checkpoint's settings, and the tokenizer's."""
    configured = lm.model.generation_config.eos_token_id if lm.model.generation_config else None
    return {*(configured if isinstance(configured, list) else [configured]), lm.tokenizer.eos_token_id} - {None}
