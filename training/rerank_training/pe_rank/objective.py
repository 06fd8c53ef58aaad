"""Batches and losses of PE-Rank's two trainings: alignment of the projector, and ranking.

Aligned, the model restores a passage's text from its projected vector. Trained to rank, it has ranking losses with and
without passage texts, and the KL divergence between both (PE-Rank, arXiv 2406.14848, sections 3.3 and 3.4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.models.decode_state import DecodeState
from rerank.prompting.templates import Template
from rerank.prompting.vector_prompts import VectorPrompts
from rerank.rankers.pe_decode import dynamic
from rerank.types import Passage, Query
from rerank_training.lists.align_texts import AlignTurns
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable
from rerank_training.pe_rank.model import CHOSEN_SLOT, PEModel
from rerank_training.trainer.losses import IGNORE_INDEX, RankLoss, kl, label_count, language_model_loss, stepwise_kl
from rerank_training.trainer.processes import over_all_processes
from rerank_training.trainer.windows import relevance_and_mask

#: The vector in the body of a template.
_VECTOR = re.compile(r"\{candidate\}\]?")
#: Template of the prompt; the answer is the text of the passage.
ALIGN_TEMPLATE = "pe_align"


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
    """The template with each passage's text after its vector, and after a bracket that closes around the vector.

    Raises:
        ConfigError: the template shows the text already.
    """
    if "{text}" in template.body:
        raise ConfigError(
            "the template shows {text} already, so that a view with text and vectors adds nothing; set "
            "--text-weight and --kl-weight to 0"
        )
    return replace(template, body=_VECTOR.sub(r"\g<0> {text}", template.body))


def _orders(windows: Sequence[TrainingList]) -> Tensor:
    """(B, N) positions by falling relevance, padding last."""
    relevance = [torch.tensor(window.relevance) for window in windows]
    values = pad_sequence(relevance, batch_first=True, padding_value=-torch.inf)
    return values.argsort(dim=1, descending=True, stable=True)


@dataclass(frozen=True)
class PEObjective:
    """Loss of a batch of `PECollator`, and the scores of its passages (PE-Rank, arXiv 2406.14848, section 3.4).

    Attributes:
        rank_loss: `stepwise_listmle` for dynamic decoding, otherwise any of RANK_LOSSES.
        stepwise: dynamic decoding: each rank has other scores, and the teacher's choices are fed back.
        text_weight: weight of the ranking loss where passages are vectors and text; where they are vectors, it is 1.
        kl_weight: weight of KL(scores with text || scores without). For dynamic decoding it is the paper's: the
            sum over the ranks, with a gradient for both. In one step there is one term, with none for the former.
    """

    rank_loss: RankLoss
    stepwise: bool = False
    text_weight: float = 0.0
    kl_weight: float = 0.0

    @property
    def reads_text(self) -> bool:
        """True if batches need the prompts with text."""
        return self.text_weight > 0 or self.kl_weight > 0

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The terms of the loss; their means over the processes are those of the windows of all of them."""
        scores = self._scores(model, batch)
        terms = [self._rank(scores, batch)]
        if self.reads_text:
            text_scores = self._scores(model, batch, "text_")
            terms.append(self.text_weight * self._rank(text_scores, batch))
            terms.append(self.kl_weight * self._divergence(scores, text_scores, batch))
        return torch.stack(terms)

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """The numbers of lists that the terms are means over."""
        losses = [self.rank_loss, *([self.rank_loss, kl] if self.reads_text else [])]
        return torch.stack([loss.count(batch["relevance"], batch["mask"]) for loss in losses])

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, N) scores as in serving, up to a constant; undefined at the padding of short windows."""
        if not self.stepwise:
            return self._scores(model, batch)
        pe_model = cast(PEModel, model)
        embeddings, passages = pe_model.embed(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        sizes = batch["mask"].sum(dim=1).tolist()
        prompts = [row[: last + 1] for row, last in zip(embeddings, batch["last_index"].tolist(), strict=True)]
        window_passages = [row[:size] for row, size in zip(passages, sizes, strict=True)]
        lm = pe_model.transformer
        prefill = partial(DecodeState, lm, lm.config)
        chosen = dynamic(prefill, prompts, window_passages, [0] * len(sizes))
        return pad_sequence([torch.tensor(row) for row, _ in chosen], batch_first=True).to(passages.device)

    def _scores(self, model: nn.Module, batch: dict[str, Tensor], view: str = "") -> Tensor:
        """(B, N) inner products of the passages and the last state; stepwise (B, N, N), row k for rank k."""
        states, passages = model(batch[f"{view}input_ids"], batch["vectors"], batch["mask"], batch["order"])
        steps = torch.arange(passages.shape[1] if self.stepwise else 1, device=states.device)
        indices = (batch[f"{view}last_index"][:, None] + steps).clamp(max=states.shape[1] - 1)  # (B, steps)
        step_states = states.gather(1, indices[..., None].expand(-1, -1, states.shape[2])).float()
        # not matmul, which autocast would compute in bfloat16
        scores = (step_states[:, :, None] * passages.float()[:, None]).sum(dim=-1)
        return scores if self.stepwise else scores[:, 0]

    def _rank(self, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return over_all_processes(self.rank_loss)(scores, batch["relevance"], batch["mask"])

    def _divergence(self, scores: Tensor, teacher: Tensor, batch: dict[str, Tensor]) -> Tensor:
        if not self.stepwise:
            return over_all_processes(kl)(scores, teacher, batch["mask"])
        ranks = batch["order"].argsort(dim=1)
        steps = torch.arange(ranks.shape[1], device=ranks.device)
        left = (ranks[:, None, :] >= steps[:, None]) & batch["mask"][:, None, :]
        return over_all_processes(stepwise_kl)(scores, teacher, left)


@dataclass(frozen=True)
class AlignCollator:
    """Collates texts into a batch: for each text, the prompt with its vector, followed by the answer: the text itself.

    The batch holds `input_ids` (B, T); `labels` (B, T), the answer's tokens, and IGNORE_INDEX elsewhere; `vectors`
    (B, 1, E); and the other arguments of PEModel: `mask` (B, 1), all True, and `order` (B, 1), all 0.

    Args:
        prompts: prompts for texts without a conversation.
        turns: the conversations about texts.
    """

    prompts: VectorPrompts
    vectors: VectorTable
    tokenizer: PreTrainedTokenizerBase
    turns: Mapping[str, AlignTurns | None] = field(default_factory=dict)

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        rows = [self._row(text) for text in texts]
        labels = [torch.tensor([IGNORE_INDEX] * len(prompt) + answer) for prompt, answer in rows]
        return {
            "input_ids": pad_sequence([torch.tensor(prompt + answer) for prompt, answer in rows], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
            "vectors": torch.from_numpy(self.vectors(texts))[:, None],
            "mask": torch.ones(len(texts), 1, dtype=torch.bool),
            "order": torch.zeros(len(texts), 1, dtype=torch.long),
        }

    def _row(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids and slots of the prompt, and token ids of the answer."""
        turns = self.turns.get(text)
        prompts, said = (self.prompts, text) if turns is None else (self._prompts_of(turns), turns.answer)
        prompt = list(prompts.token_ids(Query(""), [Passage("", "")]))
        shown = self.prompts.shown_text(Passage("", said))
        end = self.tokenizer.eos_token_id
        if not self.tokenizer.chat_template:
            answer = self._ids(shown)
            return prompt, answer if end is None else [*answer, int(end)]
        opening, whole = self._ids(self._chat()), self._ids(self._chat(shown))
        shared = next((i for i, (a, b) in enumerate(zip(opening, whole, strict=False)) if a != b), len(opening))
        answer = whole[shared:]  # as in one text, where a token may span the end of the prompt and the answer
        return prompt[: len(prompt) - len(opening) + shared], answer if end in (None, *answer) else [*answer, int(end)]

    def _prompts_of(self, turns: AlignTurns) -> VectorPrompts:
        """The prompts with the words of a conversation; many conversations have the same."""
        return _prompts_around(self.tokenizer, turns.before, turns.after)

    def _chat(self, answer: str | None = None) -> str:
        """A turn of the user and the answer in chat markup; without one, up to where it begins."""
        turns = [{"role": "user", "content": "a passage."}]
        turns += [] if answer is None else [{"role": "assistant", "content": answer}]
        options = {"tokenize": False, "add_generation_prompt": answer is None, "enable_thinking": False}
        return str(self.tokenizer.apply_chat_template(turns, **options))  # type: ignore[arg-type]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


@lru_cache(maxsize=64)
def _prompts_around(tokenizer: PreTrainedTokenizerBase, before: str, after: str) -> VectorPrompts:
    return VectorPrompts(Template(before, "{candidate}", after, sha256=""), tokenizer, in_chat=True, text_tokens=0)


class AlignObjective:
    """The language model's loss on the text, given its vector."""

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(1,) the mean cross entropy of the texts' tokens."""
        states, _ = model(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        labelled = batch["labels"] != IGNORE_INDEX
        first = int(labelled.int().argmax(dim=1).min()) - 1  # the position that predicts the first answer
        pe_model = cast(PEModel, getattr(model, "module", model))  # wrapped when training on several GPUs
        return language_model_loss(pe_model.logits(states[:, first:]), batch["labels"][:, first:])[None]

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """(1,) the number of the texts' tokens."""
        return label_count(batch["labels"])[None]

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError("alignment has no held-out lists; this is a bug")
