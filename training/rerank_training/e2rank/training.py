"""Trains an E2Rank model: from the arguments of `train-e2rank` to an encoder that retrieves and ranks.

The vector of a query learns by a contrastive loss, and the vector of query and list by a ranking loss (Liu et al.,
arXiv 2510.22733, stage 2).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import set_seed

from rerank.checkpoints.manifest import CheckpointManifest
from rerank.config import EncoderConfig
from rerank.config.models import E2RANK_INSTRUCTION
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.models.encoder_loading import locate_encoder
from rerank.models.tokenizer import load_tokenizer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import load_template
from rerank.rankers.e2rank import E2RankPrompts
from rerank.types import Window
from rerank_training.e2rank.arguments import ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE, E2RankArguments
from rerank_training.lists.training_list import TrainingList
from rerank_training.retriever.encoder import RetrieverCollator, TrainableEncoder, gather_batches
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import read_base_manifest, setting
from rerank_training.trainer.flags import WINDOW_SIZE
from rerank_training.trainer.losses import RankLoss, rank_loss_named
from rerank_training.trainer.processes import gather_tensors
from rerank_training.trainer.ranking_trainer import RankingTrainer
from rerank_training.trainer.run import result_folder, train_checkpoint
from rerank_training.trainer.windows import held_out_windows, read_training_lists, training_windows, with_filled_windows

#: Temperature in InfoNCE of the cosines of passages with the query's vector, as in the paper.
_TEMPERATURE = 0.03
#: Factor in the ranking loss of the cosines of passages with the vector of query and list, as in the paper.
_SCALE = 10.0


def train_e2rank(arguments: E2RankArguments, settings: RunArguments) -> Path:
    """Trains and returns the folder of the encoder, which states pooling, prompts, end token and instruction.

    Raises:
        ConfigError, CollectionError, CheckpointError: an input cannot be used, or the run is finished already.
    """
    rank_loss = rank_loss_named(arguments.rank_loss)
    settings.check_loads_whole_models("train-e2rank")
    settings.complete_learning_rate(arguments.lora_rank > 0, ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE)
    folder = result_folder(settings.output_dir)
    trained = read_base_manifest(locate_encoder(EncoderConfig.of(arguments.base).name), "e2rank")
    arguments, instruction = _with_base_settings(arguments, trained)
    lists, held_out = read_training_lists(arguments)
    arguments = with_filled_windows(arguments, lists, trained)
    encoder = Encoder(EncoderConfig.of(arguments.base), settings.device_name)
    if encoder.pooling != "lasttoken":
        raise ConfigError(
            f"--base {arguments.base} pools by {encoder.pooling or 'another way'}, and E2Rank reads the state of the "
            "last token; give an encoder that pools by lasttoken"
        )
    set_seed(settings.seed)  # for the initial weights of the adapter
    model = ListEncoder(encoder, arguments.lora_rank)
    tokens = min(model.max_tokens, arguments.passage_tokens)
    trainer = RankingTrainer(
        E2RankObjective(rank_loss, arguments.rank_weight),
        model=model,
        args=settings,
        train_dataset=training_windows(arguments, settings, lists),
        eval_dataset=held_out_windows(arguments, held_out),
        data_collator=E2RankCollator(
            RetrieverCollator(model.tokenizer, tokens, model.prompts), _prompts(encoder, arguments, instruction)
        ),
        processing_class=model.tokenizer,
    )
    name, default = shlex.quote(str(folder)), shlex.quote(f"default={folder}")
    return train_checkpoint(
        trainer,
        folder,
        "e2rank",
        arguments,
        how_to_serve=f"\nindex with it: rerank index --collection COLLECTION --out INDEX --encoder {name}"
        f"\nserve it: rerank serve --encoder {name} --model {default}",
        base=arguments.base,
        base_revision=encoder.id.sha256,
        passage_tokens=arguments.passage_tokens,
        instruction=instruction,
    )


def _with_base_settings(arguments: E2RankArguments, trained: CheckpointManifest | None) -> tuple[E2RankArguments, str]:
    """The arguments with a window size, and the instruction: from flags, otherwise from the base's manifest."""
    window_size = setting("window_size", arguments.window_size or None, trained, WINDOW_SIZE)
    instruction = setting("instruction", arguments.instruction, trained, E2RANK_INSTRUCTION)
    return replace(arguments, window_size=window_size), instruction


def _prompts(encoder: Encoder, arguments: E2RankArguments, instruction: str) -> E2RankPrompts:
    """The prompts as serving renders them, with all passages of a window."""
    style = PromptStyle(max_words=arguments.passage_tokens)  # a token is a word at most
    template = load_template("e2rank").with_style(style)
    tokenizer = load_tokenizer(encoder.folder)
    return E2RankPrompts(tokenizer, encoder.id.max_tokens, template, instruction, arguments.window_size)


class ListEncoder(TrainableEncoder):
    """Token ids of texts and of prompts → their unit vectors, in one call of `forward`, which DDP and FSDP expect."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, prompt_ids: Tensor, prompt_mask: Tensor
    ) -> Tensor:
        """(N + B, D) unit vectors of N texts with ids (N, T) and of B prompts with ids (B, L)."""
        of_texts = super().forward(input_ids, attention_mask)
        return torch.cat([of_texts, super().forward(prompt_ids, prompt_mask)])


@dataclass(frozen=True)
class E2RankCollator:
    """Adds `prompt_ids` and `prompt_mask` (B, L), the prompts of query and list, to a batch of RetrieverCollator."""

    texts: RetrieverCollator
    prompts: E2RankPrompts

    def __call__(self, lists: Sequence[TrainingList]) -> dict[str, Tensor]:
        ids = [self._prompt(item) for item in lists]
        padded = self.texts.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        return self.texts(lists) | {"prompt_ids": padded["input_ids"], "prompt_mask": padded["attention_mask"]}

    def _prompt(self, item: TrainingList) -> list[int]:
        prepared = self.prompts.prepare(item.query, item.passages)
        return list(self.prompts.encode(Window(prepared.query, prepared.passages)).prompts[0])


@dataclass(frozen=True)
class E2RankObjective:
    """InfoNCE of the queries' vectors, with the passages of all lists, plus a ranking loss of the lists' vectors.

    RankNet is a mean over lists here. The publisher's is a mean over all pairs, which is the same if all lists have
    equally many pairs.

    Attributes:
        rank_loss: any of RANK_LOSSES; the paper's is RankNet.
        rank_weight: weight of the ranking loss.
    """

    rank_loss: RankLoss
    rank_weight: float = 2.0

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(2,) InfoNCE and the weighted ranking loss over the batches of all processes, computed in each of them."""
        queries, passages, lists = _vectors(model, batch)
        queries, passages, relevance, mask = gather_batches(queries, passages, batch)
        of_lists = torch.cat(gather_tensors(lists)) @ passages.T
        contrast = info_nce(queries @ passages.T / _TEMPERATURE, relevance, mask)
        return torch.stack([contrast, self.rank_weight * self.rank_loss(_SCALE * of_lists, relevance, mask)])

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """(2,) number of lists over which each of the two losses is a mean."""
        of_order = self.rank_loss.count(batch["relevance"], batch["mask"])
        return torch.stack([torch.full_like(of_order, len(batch["mask"])), of_order])

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, P) cosines of every list's vector with every passage of the batch."""
        _, passages, lists = _vectors(model, batch)
        return lists @ passages.T


def _vectors(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors of the queries (B, D), of the passages (P, D) and of the lists (B, D)."""
    vectors = model(batch["input_ids"], batch["attention_mask"], batch["prompt_ids"], batch["prompt_mask"])
    n = len(batch["relevance"])
    return vectors[:n], vectors[n:-n], vectors[-n:]


def info_nce(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Mean cross entropy of each list's best passage among the passages of all lists (van den Oord et al. 2018).

    If several passages are equally relevant, the first is the best.

    Args:
        scores: (B, P) scores of each query with all passages.
        relevance: (B, P).
        mask: (B, P) bool, True for the passages of the query's list.
    """
    best = relevance.masked_fill(~mask, -torch.inf).argmax(dim=1)
    return functional.cross_entropy(scores.float(), best)
