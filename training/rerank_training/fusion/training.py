"""Adapts the fusion to judged lists: from the arguments of `train-fusion` to what is served."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import set_seed

from rerank.checkpoints.bundled import SPLADE_TINY
from rerank.commands.run import console
from rerank.config import FusionModel
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.fusion_correction import CorrectionConfig, FusionCorrection
from rerank.models.sparse_encoder import SparseEncoder
from rerank.types import FirstStageKind, FirstStageWeight
from rerank_training.fusion.arguments import LEARNING_RATE, FusionArguments
from rerank_training.fusion.examples import (
    ExampleSampling,
    FusionObjective,
    ServedExamples,
    SignalLists,
    collate,
    signals_of,
)
from rerank_training.fusion.judged_lists import check_sources, read_judged_lists
from rerank_training.fusion.verdict import Verdict, write_settings
from rerank_training.fusion.weights import (
    Values,
    Weights,
    choose,
    ndcg_of_first_stage,
    ndcg_of_weights,
)
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.windows import TrainingWindows
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import write_checkpoint
from rerank_training.trainer.losses import rank_loss_named
from rerank_training.trainer.ranking_trainer import RankingTrainer
from rerank_training.trainer.run import items_needed, result_folder, train

#: Token states of the sparse encoder that are kept for passages of several lists.
_SPARSE_CACHE_BYTES = 500_000_000
#: With fewer lists, a choice is chance, and no gain can be told from 0.
_MIN_LISTS = 20


def train_fusion(
    arguments: FusionArguments,
    settings: RunArguments,
    encoder: Encoder | None = None,
    sparse_encoder: SparseEncoder | None = None,
) -> Verdict:
    """Finds weights, trains a correction if there are enough lists, and says which of them to serve.

    Args:
        encoder, sparse_encoder: those that `arguments` names, if they are loaded already.

    Raises:
        ConfigError, CollectionError, CheckpointError: an input cannot be used, or the run is finished already.
    """
    check_flags(settings)
    settings.complete_learning_rate(has_adapter=False, of_weights=LEARNING_RATE)
    settings.include_num_input_tokens_seen = "no"  # its network reads none
    folder = result_folder(settings.output_dir)
    check_sources(arguments)
    encoder = encoder or Encoder(arguments.encoder or DEFAULT_ENCODER)
    sparse = sparse_encoder or SparseEncoder(arguments.sparse_encoder or SPLADE_TINY, cache_bytes=_SPARSE_CACHE_BYTES)
    training, held_out = _split(*read_judged_lists(arguments, encoder, lambda: sparse), arguments, settings.seed)
    signals = signals_of([training, held_out], encoder, sparse, console)
    model = FusionModel(name="default", ranker="fusion", cosine_depth=arguments.depth_of_cosines)
    weights = Weights.tried(Weights(_weight(model, arguments.kind), model.sparse_weight))
    of_training, of_held_out = (ndcg_of_weights(part, weights, model) for part in signals)
    first_stage = np.concatenate([ndcg_of_first_stage(part) for part in signals])
    values = np.concatenate([of_training, of_held_out], axis=1)
    verdict = Verdict.of_weights(first_stage, values, weights, settings.seed)
    if len(training) < arguments.correction_lists:
        problem = f"{len(training)} lists to train on, and --correction-lists is {arguments.correction_lists}"
        console.print(f"no correction is trained: {problem}")
    else:
        corrected = _train_correction(arguments, settings, folder, model, encoder, sparse, training, signals)
        beside = of_held_out[choose(of_training)]
        verdict = verdict.with_correction(corrected, beside, of_held_out[0], folder)
    if settings.process_index == 0:
        write_settings(Path(settings.output_dir), verdict.chosen, arguments.kind)
        print("\n".join(verdict.lines(Path(settings.output_dir))), flush=True)
    return verdict


def check_flags(settings: RunArguments) -> None:
    """Raises: ConfigError for a flag of Trainer that needs a transformer."""
    for flag in ("fsdp", "gradient_checkpointing", "activation_checkpointing", "neftune_noise_alpha"):
        if getattr(settings, flag):
            name = flag.replace("_", "-")
            raise ConfigError(f"train-fusion trains a small network that is not a transformer; leave --{name} out")


def _weight(model: FusionModel, given: FirstStageWeight) -> float:
    return model.weight_for(given) if isinstance(given, FirstStageKind) else given


def _train_correction(
    arguments: FusionArguments,
    settings: RunArguments,
    folder: Path,
    model: FusionModel,
    encoder: Encoder,
    sparse_encoder: SparseEncoder,
    lists: Sequence[TrainingList],
    signals: Sequence[SignalLists],
) -> Values:
    """Trains a network that adds to the scores of a fusion, and writes the folder of its checkpoint.

    Returns:
        (held-out lists,) nDCG@10 with it.
    """
    sampling = ExampleSampling(model, _weight(model, arguments.kind))
    set_seed(settings.seed)  # for the initial weights
    config = CorrectionConfig(
        encoder_name=encoder.id.name,
        encoder_sha256=encoder.id.vectors_sha256,
        sparse_encoder_sha256=sparse_encoder.id.sha256,
        dimension=encoder.id.dimension,
    )
    network = FusionCorrection(config).to(settings.device)
    training, held_out = signals
    trainer = RankingTrainer(
        FusionObjective(rank_loss_named(arguments.rank_loss)),
        selects_best=False,  # on few lists, the best of many saves is best by chance
        model=network,
        args=settings,
        train_dataset=TrainingWindows(training, sampling, items_needed(settings, len(lists)), settings.seed),
        eval_dataset=ServedExamples(held_out, sampling) if len(held_out) else None,
        data_collator=collate,
    )
    metrics = train(trainer, [arguments, settings])
    if trainer.is_world_process_zero():
        write_checkpoint(
            folder,
            "fusion",
            arguments,
            metrics,
            network,
            window_size=max(len(item.passages) for item in lists),
            base=encoder.id.name,
            base_revision=encoder.id.sha256,
        )
    return np.array(trainer.held_out_values() if len(held_out) else [])


def _split(
    lists: Sequence[TrainingList], held_out: Sequence[TrainingList], arguments: FusionArguments, seed: int
) -> tuple[Sequence[TrainingList], Sequence[TrainingList]]:
    """The training lists and the held-out ones. Lists of equal queries are on the same side.

    Lists in which no passage is more relevant than another are left out: they teach and measure nothing.

    Raises:
        CollectionError: too few lists remain, or the share of the queries that are held out leaves none, or none to
            train on.
    """
    share = 0.0 if arguments.eval_lists else arguments.held_out_share
    sides: tuple[list[TrainingList], list[TrainingList]] = ([], [])
    for item in filter(_is_graded, lists):
        sides[_draw(item.query.text, seed) < share].append(item)
    used = len(sides[0]) + len(sides[1])
    if used < len(lists):
        console.print(f"{len(lists) - used:,} of {len(lists):,} lists are left out: all their passages are as relevant")
    if not used:
        raise CollectionError(
            f"in none of the {len(lists):,} lists is a passage more relevant than another; check that the query_ids "
            "and doc_ids of the judgements are those of the lists"
        )
    if used < _MIN_LISTS:
        raise CollectionError(
            f"{used} judged lists have passages of different grades; at least {_MIN_LISTS} are needed: judge more "
            "queries, or retrieve more passages"
        )
    if share and not all(sides):
        raise CollectionError(
            f"--held-out-share {share} leaves {len(sides[0])} of {used} lists to train on and {len(sides[1])} held "
            "out; give more lists, another share, or --eval-lists"
        )
    return sides[0], list(filter(_is_graded, held_out)) if arguments.eval_lists else sides[1]


def _is_graded(item: TrainingList) -> bool:
    return max(item.relevance) > min(item.relevance)


def _draw(query: str, seed: int) -> float:
    """A number from 0 to 1, the same for equal queries."""
    digest = hashlib.blake2b(f"{seed}/{query}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
