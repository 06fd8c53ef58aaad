"""Permutation generation, the conventional way (RankGPT, RankZephyr): a causal LM writes the whole order, greedily.

"[2] > [1] > …" costs one step of the model a token, where FIRST needs one step a window. What is written is text: it
may leave passages out, name them twice or name some that are not there, so it is parsed and mended, and counted.
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
from rerank.models.last_token import translate_out_of_memory
from rerank.models.loading import CausalLM, load_causal_lm, pick_device
from rerank.prompting.identifiers import CLOSE, OPEN, IdentifierKind, alphabet
from rerank.prompting.listwise import ListwisePrompt, ListwiseRenderer
from rerank.prompting.templates import load_template
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Prepared, Query, ScoreKind, Window, WindowRanking

#: No model was trained to order more than a hundred passages in one answer.
_MOST_PASSAGES = 100
#: Tokens that an answer may have beyond the plain one: its end, a word before it, other tokens for the same text.
_SLACK_TOKENS = 8

_IDENTIFIER = "(?:[A-Za-z]|[0-9]+)"
_IN_BRACKETS = rf"\[ ?{_IDENTIFIER} ?\]"


class GenerationRanker:
    """Ranks windows by the order that a causal LM writes.

    Args:
        checkpoint: a folder with a causal LM, or a LoRA adapter.
        template: name or path of a prompt template.
        identifiers: letters or numbers; they need not be single tokens.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Raises:
        CheckpointError: no causal LM.
        ConfigError: no such template.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str,
        identifiers: IdentifierKind = IdentifierKind.NUMBERS,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        loaded = load_template(template)
        self._names = alphabet(lm.tokenizer, identifiers)[:_MOST_PASSAGES]
        self._model, self._tokenizer, self._autocast = lm.model, lm.tokenizer, lm.autocast
        self._model.generation_config = _greedy(lm)
        self._answer_tokens = cache(self._count_answer_tokens)
        self._renderer = ListwiseRenderer(loaded, lm.tokenizer, lm.context_tokens, answer_tokens=0)
        self.info = RankerInfo(
            kind="generation",
            model_id=checkpoint.name,
            model_revision=lm.revision,
            template_sha256=loaded.sha256,
            max_window_size=len(self._names),
            score_kind=ScoreKind.RANK,
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        return self._renderer.prepared(query, passages)

    def tokens(self, window: Window) -> int:
        """The prompt, and the longest answer that is waited for."""
        return len(self._prompt(window).token_ids) + self._answer_tokens(len(window.passages))

    @translate_out_of_memory()
    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        """One window after the other, because padding would change the model's arithmetic, and so its words."""
        return [self._rank(window) for window in windows]

    def _rank(self, window: Window) -> WindowRanking:
        prompt, n = self._prompt(window), len(window.passages)
        parsed = parse_permutation(self._answer(prompt.token_ids, n), self._names[:n])
        scores = [0.0] * n
        for rank, place in enumerate(parsed.permutation):
            scores[place] = float(-rank)
        return WindowRanking(tuple(scores), prompt.truncated, repairs=parsed.repairs)

    def _prompt(self, window: Window) -> ListwisePrompt:
        """The window's prompt, which leaves room for its answer."""
        return self._renderer.prompt(window, self._names, self._answer_tokens(len(window.passages)))

    @torch.inference_mode()
    def _answer(self, prompt: Sequence[int], n: int) -> str:
        """What the model writes behind the prompt, until it ends or the budget does."""
        ids = torch.tensor([list(prompt)], device=self._device)  # (1, T)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            written = cast(Any, self._model).generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=self._answer_tokens(n)
            )  # (1, T + answer)
        return str(self._tokenizer.decode(written[0, len(prompt) :].tolist(), skip_special_tokens=True))

    def _count_answer_tokens(self, n: int) -> int:
        """The most tokens that an answer about n passages gets."""
        answer = " > ".join(f"{OPEN}{name}{CLOSE}" for name in self._names[:n])
        return len(self._tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]) + _SLACK_TOKENS


def _greedy(lm: CausalLM) -> GenerationConfig:
    """Greedy and nothing else: no temperature or repetition penalty that a checkpoint brings along."""
    own = lm.model.generation_config.eos_token_id
    ends = {*(own if isinstance(own, list) else [own]), lm.tokenizer.eos_token_id} - {None}
    pad = _pad_id(lm.tokenizer)
    return GenerationConfig(do_sample=False, eos_token_id=sorted(ends) or None, pad_token_id=pad)


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Any id will do where a tokenizer has none of its own: a batch of one is never padded."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)


@dataclass(frozen=True, slots=True)
class ParsedPermutation:
    """What a generated answer says about a window.

    Attributes:
        permutation: places in the window, best first; those that the answer does not name come last, in order.
        missing: how many places the answer does not name.
        repeated: how many of its identifiers had been named before.
        foreign: how many of its identifiers name no passage of the window.
    """

    permutation: tuple[int, ...]
    missing: int
    repeated: int
    foreign: int

    @property
    def repairs(self) -> int:
        return self.missing + self.repeated + self.foreign


def parse_permutation(text: str, names: Sequence[str]) -> ParsedPermutation:
    """The order in which a text names the passages of a window; a permutation whatever it says.

    Args:
        text: the model's answer.
        names: the window's identifiers, either letters or numbers. Letters of one case may be written in the other.
    """
    places = _places(names)
    written = [places.get(identifier) for identifier in _identifiers(text, names)]
    known = [place for place in written if place is not None]
    named = list(dict.fromkeys(known))
    missing = sorted(set(range(len(names))) - set(named))
    return ParsedPermutation(
        permutation=(*named, *missing),
        missing=len(missing),
        repeated=len(known) - len(named),
        foreign=len(written) - len(known),
    )


def _places(names: Sequence[str]) -> dict[str, int]:
    """Identifier → place, in the other case too where the names have one only."""
    own = {name: place for place, name in enumerate(names)}
    one_case = len({name.isupper() for name in names}) == 1
    return {name.swapcase(): place for name, place in own.items()} | own if one_case else own


def _identifiers(text: str, names: Sequence[str]) -> list[str]:
    """The identifiers in a text, in its order: those in brackets, and those of the names' kind in a chain, "2 > 1".

    Brackets may be left out inside a chain only. Numbers make one with commas too, where nothing stands in brackets.
    """
    text = " ".join(text.split())
    numbers = all(name.isdecimal() for name in names)
    bare = rf"(?<![\w.]){'[0-9]+' if numbers else '[A-Za-z]'}(?!\w|\.[0-9])"
    item = rf"(?:{_IN_BRACKETS}|\[? ?{bare} ?\]?)"
    then = "[>,]" if numbers and not re.search(_IN_BRACKETS, text) else ">"
    found = re.findall(rf"{item}(?: ?{then} ?{item})+|{_IN_BRACKETS}", text)
    return re.findall(_IDENTIFIER, " ".join(found))
