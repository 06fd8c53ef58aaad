"""Windows → what FIRST is trained on: the prompt that serving would feed, its answer, and where to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError, InvalidRequest
from rerank.prompting.identifiers import CLOSE, OPEN, IdentifierKind, derive_identifiers
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import Template
from rerank.types import Query, Window
from rerank_training.data import TrainingList
from rerank_training.losses import IGNORED


@dataclass(frozen=True, slots=True)
class FirstExample:
    """One window.

    Attributes:
        token_ids: the prompt with the opening bracket; then, where the language is trained too, the answer.
        read_at: the bracket's place. The logits there, over the identifiers, are the scores.
        identifier_at: the place of each passage's identifier in the prompt; empty where nobody asked.
        relevance: of each passage, in the prompt's order.
    """

    token_ids: list[int]
    read_at: int
    identifier_at: tuple[int, ...]
    relevance: tuple[float, ...]


class FirstExamples:
    """Turns windows into examples by the code that serves them: the same prompts, identifiers and bracket.

    Args:
        context_tokens: what the model can read.
        passage_tokens: the most tokens of a passage that are shown.
        with_answer: put the permutation behind the prompt, for the language model's loss.
        with_places: find the identifiers in the prompt, for the probe.

    Raises:
        CheckpointError: the tokenizer has too few identifiers.
        ConfigError: the template shows identifiers before the passages, so that the probe would look there.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: Template,
        kind: IdentifierKind,
        context_tokens: int,
        passage_tokens: int,
        with_answer: bool,
        with_places: bool,
    ) -> None:
        if with_places and "{example}" in template.prefix:
            raise ConfigError("the probe needs a template without {example} in its prefix; set probe_weight 0")
        self._tokenizer = tokenizer
        self._with_answer, self._with_places = with_answer, with_places
        self._renderer = ListwiseRenderer(template, tokenizer, context_tokens, 1, passage_tokens)
        prompt_end = self._renderer.text(Query("query"), ["A"], ["passage"])[-16:]
        self.identifiers = derive_identifiers(tokenizer, kind, prompt_end)
        first = prompt_end + OPEN + self.identifiers.texts[0]
        self._between = self._ids_behind(first, f"{CLOSE} > {OPEN}")
        self._end = self._ids_behind(first, CLOSE)

    def __call__(self, item: TrainingList) -> FirstExample:
        """Raises: ConfigError when the window is wider than the identifiers reach, too long, or an identifier hides."""
        n = len(item.passages)
        if n > len(self.identifiers):
            raise ConfigError(
                f"a window of {n} passages exceeds the {len(self.identifiers)} single-token identifiers of this "
                f"tokenizer; use windows of at most {len(self.identifiers)}"
            )
        best_first = sorted(range(n), key=lambda place: -item.relevance[place])
        answer = self._answer(best_first) if self._with_answer else []
        prompt = self._prompt(item, len(answer))
        asked = [*prompt, self.identifiers.bracket_id]
        return FirstExample(
            token_ids=asked + answer,
            read_at=len(asked) - 1,
            identifier_at=self._places(prompt, n) if self._with_places else (),
            relevance=item.relevance,
        )

    def _prompt(self, item: TrainingList, answer_tokens: int) -> list[int]:
        prepared = self._renderer.prepared(item.query, item.passages)
        window = Window(prepared.query, prepared.passages)
        try:
            return self._renderer.prompt(window, self.identifiers.texts, answer_tokens).token_ids
        except InvalidRequest as error:
            raise ConfigError(f"list {item.query.query_id!r}: {error}, or leave the list out") from error

    def _answer(self, best_first: Sequence[int]) -> list[int]:
        """What follows the bracket: "B] > [A]" and the end. Identifiers are ids, so that no token spans a bracket."""
        ids: list[int] = []
        for place in best_first:
            ids += [*(self._between if ids else []), self.identifiers.token_ids[place]]
        end = self._tokenizer.eos_token_id
        return ids + self._end + ([] if end is None else [int(end)])

    def _places(self, prompt: Sequence[int], n: int) -> tuple[int, ...]:
        """Where the prompt shows each identifier, behind a bracket. Passages cannot hold one, they are neutral text."""
        places: list[int] = []
        at = 1
        for token_id in self.identifiers.token_ids[:n]:
            while at < len(prompt) and not (prompt[at] == token_id and self._is_bracket(prompt[at - 1])):
                at += 1
            if at == len(prompt):
                raise ConfigError(
                    f"identifier {len(places) + 1} of {n} is no token of its own in the prompt of this tokenizer, so "
                    "the probe has nothing to read; set probe_weight 0"
                )
            places.append(at)
        return tuple(places)

    def _is_bracket(self, token_id: int) -> bool:
        return str(self._tokenizer.decode([token_id])).strip().endswith(OPEN)

    def _ids_behind(self, before: str, text: str) -> list[int]:
        """The ids that text has behind another; alone, some tokenizers would begin it with a word mark."""
        start, whole = self._plain_ids(before), self._plain_ids(before + text)
        return whole[len(start) :] if whole[: len(start)] == start else self._plain_ids(text)

    def _plain_ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


@dataclass(frozen=True)
class FirstCollator:
    """Windows → a batch. Padding stands on the right, where a causal model never looks back from a real token.

    The batch holds `input_ids` (B, T); `labels` (B, T), the answer's tokens, elsewhere IGNORED; `read_at` (B,);
    `relevance` and `mask` (B, N), False behind short windows; `identifier_at` (B, N), 0 where there is none.
    """

    examples: FirstExamples
    pad_id: int

    def __call__(self, windows: Sequence[TrainingList]) -> dict[str, Tensor]:
        rows = [self.examples(window) for window in windows]
        ids = [torch.tensor(row.token_ids) for row in rows]
        labels = [torch.tensor([IGNORED] * (row.read_at + 1) + row.token_ids[row.read_at + 1 :]) for row in rows]
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_id),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            "read_at": torch.tensor([row.read_at for row in rows]),
            "relevance": padded([row.relevance for row in rows]),
            "mask": padded([[1.0] * len(row.relevance) for row in rows]).bool(),
            "identifier_at": padded([row.identifier_at for row in rows]).long(),
        }


def padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """(B, N) float32, 0 behind short rows."""
    return pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)


def pad_id_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Any id will do, because padding is never read."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
