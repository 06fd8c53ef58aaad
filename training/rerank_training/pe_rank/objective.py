"""Batches and losses of PE-Rank's two trainings: alignment of the projector, and ranking.

In the alignment, the model learns to restore a passage's text from its projected vector. To learn ranking, it has
ranking losses on prompts with and without texts, and the KL divergence between the scores with and without texts
(PE-Rank, arXiv 2406.14848, sections 3.3 and 3.4).
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

#: The slot of a passage's vector in the body of a template, with a closing bracket.
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
        prompts: the prompts of serving.
        passages: vectors of all passages in the windows.
        queries: vectors of all queries; None if the prompts have no slot for the query.
        context_tokens: largest number of positions that the model reads.
        text_prompts: prompts with the text after each vector; None if these are not trained.
        with_choices: whether all passages but the last follow the prompt, best first, for dynamic decoding.
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
    """Token ids and slots of a window's prompt, equal to those in serving."""
    passages = window.passages
    if prompts.reads_text:
        passages = tuple(replace(passage, text=prompts.shown_text(passage)) for passage in passages)
    return list(prompts.token_ids(prompts.sanitize(window.query), passages))


def with_text(template: Template) -> Template:
    """The template with each passage's text after its vector, or after the bracket that closes behind the vector.

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
    """(B, N) positions of the passages by falling relevance, padding last."""
    relevance = [torch.tensor(window.relevance) for window in windows]
    values = pad_sequence(relevance, batch_first=True, padding_value=-torch.inf)
    return values.argsort(dim=1, descending=True, stable=True)


@dataclass(frozen=True)
class PEObjective:
    """Loss of a batch of `PECollator`, and the scores of its passages (PE-Rank, arXiv 2406.14848, section 3.4).

    Attributes:
        rank_loss: `stepwise_listmle` for dynamic decoding, otherwise any of RANK_LOSSES.
        stepwise: True for dynamic decoding: each rank has its own scores, and the teacher's choices are fed back.
        text_weight: weight of the ranking loss on prompts with vectors and texts; the loss on vectors alone has weight
            1.
        kl_weight: weight of KL(scores with text || scores without). For dynamic decoding, as in the paper, it is the
            sum over the ranks, and the gradient flows into both. In one step, the scores with text get no gradient.
    """

    rank_loss: RankLoss
    stepwise: bool = False
    text_weight: float = 0.0
    kl_weight: float = 0.0

    @property
    def reads_text(self) -> bool:
        """True if a loss needs the prompts with texts."""
        return self.text_weight > 0 or self.kl_weight > 0

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(K,) terms of the loss. The mean of a term over all processes is the term of all their windows."""
        scores = self._scores(model, batch)
        terms = [self._rank(scores, batch)]
        if self.reads_text:
            text_scores = self._scores(model, batch, "text_")
            terms.append(self.text_weight * self._rank(text_scores, batch))
            terms.append(self.kl_weight * self._divergence(scores, text_scores, batch))
        return torch.stack(terms)

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """(K,) number of lists over which each term is a mean."""
        losses = [self.rank_loss, *([self.rank_loss, kl] if self.reads_text else [])]
        return torch.stack([loss.count(batch["relevance"], batch["mask"]) for loss in losses])

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, N) scores of serving plus a constant; undefined at the padding of short windows."""
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
        """(B, N) inner products of the passages with the last hidden state; stepwise (B, N, N) with row k for rank k.

        Args:
            view: "text_" for the prompts with texts.
        """
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
    """Collates texts into a batch: for each text, a prompt with its vector, and the answer.

    Without a conversation about the text, the answer is the text itself.

    The batch holds `input_ids` (B, T); `labels` (B, T), the answer's tokens, and IGNORE_INDEX elsewhere; `vectors`
    (B, 1, E); and the other arguments of PEModel: `mask` (B, 1), all True, and `order` (B, 1), all 0.

    Args:
        prompts: prompts for texts without a conversation.
        vectors: vectors of all texts.
        turns: text → the conversation about it.
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
        answer = whole[shared:]  # a token may span the end of the prompt and the start of the answer
        return prompt[: len(prompt) - len(opening) + shared], answer if end in (None, *answer) else [*answer, int(end)]

    def _prompts_of(self, turns: AlignTurns) -> VectorPrompts:
        """Prompts with the user's words in a conversation; they are cached, because many conversations share them."""
        return _prompts_around(self.tokenizer, turns.before, turns.after)

    def _chat(self, answer: str | None = None) -> str:
        """A user's turn and the answer in chat markup; without an answer, the markup ends where it would begin."""
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
    """The cross entropy of the answers, given the vectors of the texts."""

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(1,) mean cross entropy of the answers' tokens, in nats."""
        states, _ = model(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        labelled = batch["labels"] != IGNORE_INDEX
        first = int(labelled.int().argmax(dim=1).min()) - 1  # the position that predicts the first answer
        pe_model = cast(PEModel, getattr(model, "module", model))  # wrapped when training on several GPUs
        return language_model_loss(pe_model.logits(states[:, first:]), batch["labels"][:, first:])[None]

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """(1,) number of tokens in the answers."""
        return label_count(batch["labels"])[None]

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError("alignment has no held-out lists; this is a bug")
