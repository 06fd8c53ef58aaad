"""Batches and loss of FIRST: windows as tokenized prompts with answers, a ranking loss on the identifier logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError, InvalidRequest
from rerank.prompting.identifiers import CLOSE, OPEN, IdentifierKind, derive_identifiers
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import Template
from rerank.types import Window
from rerank_training.first.arguments import FirstArguments
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.losses import IGNORE_INDEX, RankLoss, label_count, language_model_loss
from rerank_training.trainer.processes import over_all_processes
from rerank_training.trainer.windows import relevance_and_mask

ObjectiveName: TypeAlias = Literal["lm", "rank", "joint"]

#: FIRST's weights of two ranking losses, where the loss of the language model has 1. All others have 10.
_RANK_WEIGHTS = {"lambdarank-first": 1.0, "listnet-first": 0.1}


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """Prompt and window that the model is trained on.

    Attributes:
        template: template of the prompt.
        identifiers: letters or numbers.
        window_size: largest number of passages in a window.
        passage_tokens: passages are truncated to this number of tokens; 0: as many as fit into the context.
    """

    template: Template
    identifiers: IdentifierKind
    window_size: int
    passage_tokens: int


@dataclass(frozen=True, slots=True)
class FirstExample:
    """One tokenized window.

    Attributes:
        token_ids: the prompt up to and including the opening bracket, followed by the answer if it is trained.
        bracket_index: index of the opening bracket. The logits there, at the identifiers, are the scores.
    """

    token_ids: list[int]
    bracket_index: int


class FirstCollator:
    """Collates windows into a batch with the code that serves them: the same prompts, identifiers and bracket.

    The batch is padded on the right, which no token of a causal model attends to. It holds `input_ids` (B, T);
    `labels` (B, T), the tokens from the bracket on, IGNORE_INDEX elsewhere; `bracket_index` (B,); `relevance` and
    `mask` (B, N), False at the padding of short windows.

    Args:
        context_tokens: largest number of tokens in an example.
        with_answer: append the permutation to the prompt, for the loss of the language model.

    Raises:
        CheckpointError: the tokenizer has too few identifiers.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt: PromptSettings, context_tokens: int, with_answer: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._with_answer = with_answer
        self._renderer = ListwiseRenderer(prompt.template, tokenizer, context_tokens, 1, prompt.passage_tokens)
        prompt_end = self._renderer.prompt_end
        self.identifiers = derive_identifiers(tokenizer, prompt.identifiers, prompt_end)
        first = prompt_end + OPEN + self.identifiers.texts[0]
        self._separator_ids = self._continuation_ids(first, f"{CLOSE} > {OPEN}")
        self._closing_ids = self._continuation_ids(first, CLOSE)

    def __call__(self, windows: Sequence[TrainingList]) -> dict[str, Tensor]:
        rows = [self.example(window) for window in windows]
        ids = [torch.tensor(row.token_ids) for row in rows]
        pad_id = self._tokenizer.pad_token_id or 0  # any, because padding is never read
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_id),
            "labels": pad_sequence([_labels(row) for row in rows], batch_first=True, padding_value=IGNORE_INDEX),
            "bracket_index": torch.tensor([row.bracket_index for row in rows]),
            **relevance_and_mask(windows),
        }

    def example(self, item: TrainingList) -> FirstExample:
        """Tokenizes one window.

        Raises:
            ConfigError: the prompt is too long.
        """
        best_first = sorted(range(len(item.passages)), key=lambda position: -item.relevance[position])
        answer = self._answer(best_first) if self._with_answer else []
        prompt = self._prompt(item, len(answer))
        return FirstExample(token_ids=[*prompt, self.identifiers.bracket_id, *answer], bracket_index=len(prompt))

    def _prompt(self, item: TrainingList, answer_tokens: int) -> list[int]:
        prepared = self._renderer.prepare(item.query, item.passages)
        window = Window(prepared.query, prepared.passages)
        try:
            return self._renderer.prompt(window, self.identifiers.texts, answer_tokens).token_ids
        except InvalidRequest as error:
            raise ConfigError(f"list {item.query.query_id!r}: {error}, or remove the list") from error

    def _answer(self, best_first: Sequence[int]) -> list[int]:
        """Token ids after the opening bracket: "B] > [A]" and the end of sequence.

        The identifiers are inserted as ids, so that no token spans an identifier and a bracket.
        """
        ids: list[int] = []
        for position in best_first:
            ids += [*(self._separator_ids if ids else []), self.identifiers.token_ids[position]]
        end = self._tokenizer.eos_token_id
        return ids + self._closing_ids + ([] if end is None else [int(end)])

    def _continuation_ids(self, before: str, text: str) -> list[int]:
        """Token ids of `text` after `before`; tokenized alone, some tokenizers would start it with a word marker."""
        start, full = self._plain_ids(before), self._plain_ids(before + text)
        return full[len(start) :] if full[: len(start)] == start else self._plain_ids(text)

    def _plain_ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _labels(row: FirstExample) -> Tensor:
    """(T,) labels. The opening bracket is one, too: FIRST reads it in the prompt, but `generation` must write it."""
    return torch.tensor([IGNORE_INDEX] * row.bracket_index + row.token_ids[row.bracket_index :])


def joint_rank_weight(arguments: FirstArguments) -> float:
    """The weight of the ranking loss in the joint objective; the language model's is 1."""
    given = arguments.rank_weight
    return _RANK_WEIGHTS.get(arguments.rank_loss, 10.0) if given is None else given


@dataclass(frozen=True)
class FirstObjective:
    """Loss of a batch of `FirstCollator`, and the scores of its passages.

    Attributes:
        objective: `lm`, `rank`, or `joint`: LM + rank_weight * rank (FIRST, arXiv 2406.15657, section 3.3).
        rank_loss: on the identifier logits at the opening bracket, whose next token is the best passage's identifier.
        rank_weight: read by `joint` only.
        identifier_ids: token ids in the order of the passages.
    """

    objective: ObjectiveName
    rank_loss: RankLoss
    rank_weight: float
    identifier_ids: tuple[int, ...]

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(K,) terms of the loss. The mean of a term over all processes is the term of all their windows."""
        logits = self._forward(model, batch)
        terms = []
        if self.objective != "rank":
            terms.append(language_model_loss(logits, batch["labels"][:, -logits.shape[1] :]))
        if self.objective != "lm":
            weight = self.rank_weight if self.objective == "joint" else 1.0
            terms.append(weight * self._rank(self._scores(logits, batch), batch))
        return torch.stack(terms)

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """(K,) number of answer tokens or lists over which each term is a mean."""
        counts = []
        if self.objective != "rank":
            counts.append(label_count(batch["labels"]))
        if self.objective != "lm":
            counts.append(self.rank_loss.count(batch["relevance"], batch["mask"]))
        return torch.stack(counts)

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, N) logits of the identifiers; undefined at the padding of short windows."""
        return self._scores(self._forward(model, batch), batch)

    def _rank(self, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return over_all_processes(self.rank_loss)(scores, batch["relevance"], batch["mask"])

    def _forward(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, K, vocabulary) logits of the last K positions, which begin one before the first bracket."""
        ids, first = batch["input_ids"], int(batch["bracket_index"].min()) - 1
        logits: Tensor = model(
            input_ids=ids,
            use_cache=False,
            # Indices, because a slice is not contiguous: the product would copy the vocabulary's matrix for each row.
            logits_to_keep=torch.arange(first, ids.shape[1], device=ids.device),
        ).logits
        return logits[:, first - ids.shape[1] :]

    def _scores(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        first = batch["input_ids"].shape[1] - logits.shape[1]
        rows = torch.arange(len(logits), device=logits.device)
        at_bracket = logits[rows, batch["bracket_index"] - first]  # (B, vocabulary)
        return at_bracket[:, list(self.identifier_ids[: batch["mask"].shape[1]])]
