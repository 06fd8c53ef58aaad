"""Permutation generation (RankGPT, RankZephyr): a causal LM writes the order of a window as text, "[2] > [1] > …".

Generation costs one step of the model per token, where FIRST needs one step per window. The text may leave passages
out, name them twice or name unknown ones, so it is parsed and repaired, and the repairs are counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from rerank.config import Precision
from rerank.manifest import model_id
from rerank.models.last_token import translate_out_of_memory
from rerank.models.loading import CausalLM, load_causal_lm, pick_device
from rerank.prompting.identifiers import CLOSE, OPEN, IdentifierKind, alphabet
from rerank.prompting.templates import Template
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import EncodedWindow, ScoreKind, Window, WindowRanking

#: No model was trained to order more than a hundred passages in one answer.
_MOST_PASSAGES = 100
#: Tokens that an answer may have beyond the bare permutation: its end token, a word before it, another tokenization.
_SLACK_TOKENS = 8

_IDENTIFIER = "(?:[A-Za-z]|[0-9]+)"
_IN_BRACKETS = rf"\[ ?{_IDENTIFIER} ?\]"


class GenerationPrompts(TextPrompts):
    """Permutation generation without its model: the prompts of windows, and the rankings of the answers.

    Args:
        tokenizer: of the model.
        context_tokens: the most tokens of a prompt and its answer.
        template: a prompt template, or its name or path.
        identifiers: letters or numbers; they need not be single tokens.

    Raises:
        CheckpointError: the chat template opens a reasoning.
        ConfigError: there is no such template.
    """

    kind = "generation"
    score_kind = ScoreKind.RANK

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        template: str | Template,
        identifiers: IdentifierKind,
    ) -> None:
        super().__init__(tokenizer, context_tokens, template)
        self._tokenizer = tokenizer
        self._names = alphabet(tokenizer, identifiers)[:_MOST_PASSAGES]
        self.max_window_size, self.max_window_tokens = len(self._names), context_tokens
        self.answer_tokens = cache(self._count_answer_tokens)

    def encode(self, window: Window) -> EncodedWindow:
        """The prompt, which leaves room for the longest answer; both count as tokens."""
        answer_tokens = self.answer_tokens(len(window.passages))
        prompt = self.renderer.prompt(window, self._names, answer_tokens)
        tokens = len(prompt.token_ids) + answer_tokens
        return EncodedWindow(window, (tuple(prompt.token_ids),), tokens, prompt.truncated)

    def ranking(self, n: int, answer: str) -> WindowRanking:
        """Minus the rank of each of n passages in the text that the model wrote."""
        parsed = parse_permutation(without_reasoning(answer), self._names[:n])
        scores = [0.0] * n
        for rank, place in enumerate(parsed.permutation):
            scores[place] = float(-rank)
        return WindowRanking(tuple(scores), repairs=parsed.repairs)

    def _count_answer_tokens(self, n: int) -> int:
        """The token budget of an answer about n passages."""
        answer = " > ".join(f"{OPEN}{name}{CLOSE}" for name in self._names[:n])
        return len(self._tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]) + _SLACK_TOKENS


class GenerationRanker(GenerationPrompts):
    """Ranks windows by the permutation that a causal LM generates greedily.

    Args:
        checkpoint: a folder with a causal LM, or a LoRA adapter.
        template, identifiers: see GenerationPrompts.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Raises:
        CheckpointError: the checkpoint holds no causal LM.
        ConfigError: there is no such template.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str | Template,
        identifiers: IdentifierKind = IdentifierKind.NUMBERS,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        super().__init__(lm.tokenizer, lm.context_tokens, template, identifiers)
        self._model, self._autocast = lm.model, lm.autocast
        self._model.generation_config = _greedy(lm)
        self.info = self.describe(model_id(checkpoint), lm.revision)

    @translate_out_of_memory()
    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """Minus the generated rank of each passage. One window at a time: padding would change what is generated."""
        sizes = [len(encoded.window.passages) for encoded in windows]
        return [self.ranking(n, self._answer(each.prompts[0], n)) for each, n in zip(windows, sizes, strict=True)]

    @torch.inference_mode()
    def _answer(self, prompt: Sequence[int], n: int) -> str:
        """The text that the model generates after the prompt, up to its end token or the token budget."""
        ids = torch.tensor([list(prompt)], device=self._device)  # (1, T)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            output = cast(Any, self._model).generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.answer_tokens(n)
            )  # (1, T + answer)
        return str(self._tokenizer.decode(output[0, len(prompt) :].tolist(), skip_special_tokens=True))


def _greedy(lm: CausalLM) -> GenerationConfig:
    """Greedy decoding without the temperature or repetition penalty that a checkpoint may configure."""
    configured = lm.model.generation_config.eos_token_id
    eos_ids = {*(configured if isinstance(configured, list) else [configured]), lm.tokenizer.eos_token_id} - {None}
    return GenerationConfig(do_sample=False, eos_token_id=sorted(eos_ids) or None, pad_token_id=_pad_id(lm.tokenizer))


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The padding token; 0 if there is none, because a batch of one is never padded."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)


@dataclass(frozen=True, slots=True)
class ParsedPermutation:
    """The permutation that a generated answer states, with counts of its repairs.

    Attributes:
        permutation: places in the window, best first; those that the answer does not name come last, in order.
        missing: number of places that the answer does not name.
        repeated: number of its identifiers that it had named before.
        unknown: number of its identifiers that name no passage of the window.
    """

    permutation: tuple[int, ...]
    missing: int
    repeated: int
    unknown: int

    @property
    def repairs(self) -> int:
        return self.missing + self.repeated + self.unknown


def without_reasoning(text: str) -> str:
    """The answer after a reasoning, <think>…</think>; empty if the reasoning has no end, because it names no order."""
    _, end, answer = text.rpartition("</think>")
    return answer if end else text.partition("<think>")[0]


def parse_permutation(text: str, names: Sequence[str]) -> ParsedPermutation:
    """The order in which a text names the passages of a window, repaired to a permutation.

    Args:
        text: the model's answer.
        names: the window's identifiers, either letters or numbers. Letters of one case may be written in the other.
    """
    places = _places(names)
    identified = [places.get(identifier) for identifier in _identifiers(text, names)]
    known = [place for place in identified if place is not None]
    named = list(dict.fromkeys(known))
    missing = sorted(set(range(len(names))) - set(named))
    return ParsedPermutation(
        permutation=(*named, *missing),
        missing=len(missing),
        repeated=len(known) - len(named),
        unknown=len(identified) - len(known),
    )


def _places(names: Sequence[str]) -> dict[str, int]:
    """Identifier → place in the window; identifiers of one case are also accepted in the other case."""
    places = {name: place for place, name in enumerate(names)}
    one_case = len({name.isupper() for name in names}) == 1
    return {name.swapcase(): place for name, place in places.items()} | places if one_case else places


def _identifiers(text: str, names: Sequence[str]) -> list[str]:
    """The identifiers in a text, in its order: those in brackets, and bare ones in a chain such as "2 > 1".

    Brackets may be left out only inside a chain. Numbers may be chained by commas if the text holds no brackets.
    """
    text = " ".join(text.split())
    numbers = all(name.isdecimal() for name in names)
    bare = rf"(?<![\w.]){'[0-9]+' if numbers else '[A-Za-z]'}(?!\w|\.[0-9])"
    item = rf"(?:{_IN_BRACKETS}|\[? ?{bare} ?\]?)"
    separator = "[>,]" if numbers and not re.search(_IN_BRACKETS, text) else ">"
    found = re.findall(rf"{item}(?: ?{separator} ?{item})+|{_IN_BRACKETS}", text)
    return re.findall(_IDENTIFIER, " ".join(found))
