"""Trains a correction of the fusion's scores: from the arguments of `train-fusion` to a checkpoint that is served."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from transformers import set_seed

from rerank.checkpoints.bundled import SPLADE_TINY
from rerank.commands.run import console
from rerank.config import FusionModel
from rerank.errors import CollectionError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.fusion_correction import CorrectionConfig, FusionCorrection
from rerank.models.sparse_encoder import SparseEncoder
from rerank_training.fusion.arguments import LEARNING_RATE, FusionArguments
from rerank_training.fusion.examples import ExampleSampling, FusionObjective, ServedExamples, SignalLists, collate
from rerank_training.lists.files import SelectedLists
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import ListTexts, VectorTable
from rerank_training.lists.windows import TrainingWindows
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.change import Change
from rerank_training.trainer.checkpoint import ranker_manifest, write_checkpoint
from rerank_training.trainer.data import read_training_lists
from rerank_training.trainer.losses import rank_loss_named
from rerank_training.trainer.ranking_trainer import RankingTrainer
from rerank_training.trainer.reports import print_summary
from rerank_training.trainer.run import items_needed, result_folder, select_checkpoint, train

_SIGNIFICANT = 0.05
#: Token states of the sparse encoder that are kept for passages of several lists.
_SPARSE_CACHE_BYTES = 500_000_000


def train_fusion(
    arguments: FusionArguments,
    settings: RunArguments,
    encoder: Encoder | None = None,
    sparse_encoder: SparseEncoder | None = None,
) -> Path:
    """Trains and returns the folder of the checkpoint, which `rerank serve --model NAME=FOLDER` serves.

    Args:
        encoder, sparse_encoder: those that `arguments` names, if they are loaded already.

    Raises:
        ConfigError, CollectionError, CheckpointError: an input cannot be used, or the run is finished already.
    """
    objective = FusionObjective(rank_loss_named(arguments.rank_loss))
    settings.check_not_sharded("train-fusion")
    settings.complete_learning_rate(has_adapter=False, of_weights=LEARNING_RATE)
    folder = result_folder(settings.output_dir)
    lists, held_out = _lists(arguments, settings.seed)
    encoder = encoder or Encoder(arguments.encoder or DEFAULT_ENCODER)
    sparse = sparse_encoder or SparseEncoder(arguments.sparse_encoder or SPLADE_TINY, cache_bytes=_SPARSE_CACHE_BYTES)
    parts, run = [lists, held_out], Path(settings.output_dir)
    queries = VectorTable(encoder.encode_queries, ListTexts(parts, "queries"), console, run)
    encode = partial(encoder.encode_passages, dtype="auto")
    passages = VectorTable(encode, ListTexts(parts, "passages"), console, run)
    model = FusionModel(name="fusion", ranker="fusion", cosine_depth=arguments.cosine_depth)
    sampling = ExampleSampling(model, model.weight_for(arguments.first_stage_weight), arguments.unscored_share)
    set_seed(settings.seed)  # for the initial weights
    config = CorrectionConfig(
        encoder_name=encoder.id.name,
        encoder_sha256=encoder.id.vectors_sha256,
        sparse_encoder_sha256=sparse.id.sha256,
        dimension=encoder.id.dimension,
        width=arguments.width,
    )
    network = FusionCorrection(config).to(settings.device)
    select_checkpoint(settings, held_out=False)  # on few lists, the best of many saves is best by chance
    signals = partial(SignalLists, queries=queries, passages=passages, sparse_encoder=sparse, console=console)
    windows = TrainingWindows(signals(lists), sampling, items_needed(settings, len(lists)), settings.seed)
    held_out_examples = ServedExamples(signals(held_out), sampling) if held_out else None
    trainer = RankingTrainer(
        objective,
        model=network,
        args=settings,
        train_dataset=windows,
        eval_dataset=held_out_examples,
        data_collator=collate,
    )
    before = trainer.held_out_values() if held_out else []  # the network starts at the fusion's order
    metrics = train(trainer, [arguments, settings])
    after = trainer.held_out_values() if held_out else []
    if trainer.is_world_process_zero():
        manifest = ranker_manifest(
            "fusion",
            arguments,
            None,
            metrics,
            window_size=max(len(item.passages) for item in lists),
            base=encoder.id.name,
            base_revision=encoder.id.sha256,
        )
        write_checkpoint(folder, network, None, None, manifest)
        print_summary(trainer, folder)
        if held_out:
            print(_verdict(Change.of(before, after), len(held_out)), flush=True)
    return folder


def _verdict(change: Change, lists: int) -> str:
    test = f"paired t-test over {lists} held-out lists: p = {change.p:.2g}"
    if change.p < _SIGNIFICANT and change.after > change.before:
        return f"{test}; this model ranks lists like these better than the default does"
    return f"{test}; no gain is shown, so keep the default model, or judge more queries"


def _lists(arguments: FusionArguments, seed: int) -> tuple[Sequence[TrainingList], Sequence[TrainingList]]:
    """The training lists and the held-out ones. Lists of equal queries are on the same side.

    Lists in which no passage is more relevant than another are left out: they teach and measure nothing.

    Raises:
        CollectionError: all lists are such, or the share of the queries that are held out leaves none, or none to
            train on.
    """
    lists, held_out = read_training_lists(arguments)
    share = 0.0 if arguments.eval_lists else arguments.held_out_share
    sides: tuple[list[int], list[int]] = ([], [])
    for position, item in enumerate(lists):
        if _is_graded(item):
            sides[_draw(item.query.text, seed) < share].append(position)
    used = len(sides[0]) + len(sides[1])
    if used < len(lists):
        console.print(f"{len(lists) - used:,} of {len(lists):,} lists are left out: all their passages are as relevant")
    if not used:
        raise CollectionError(
            f"in none of the {len(lists):,} lists is a passage more relevant than another; check that the query_ids "
            "and doc_ids of the judgements are those of the lists"
        )
    if share and not all(sides):
        raise CollectionError(
            f"--held-out-share {share} leaves {len(sides[0])} of {used} lists to train on and {len(sides[1])} held "
            "out; give more lists, another share, or --eval-lists"
        )
    if arguments.eval_lists:
        return SelectedLists(lists, sides[0]), SelectedLists(
            held_out, [position for position, item in enumerate(held_out) if _is_graded(item)]
        )
    return SelectedLists(lists, sides[0]), SelectedLists(lists, sides[1])


def _is_graded(item: TrainingList) -> bool:
    return max(item.relevance) > min(item.relevance)


def _draw(query: str, seed: int) -> float:
    """A number from 0 to 1, the same for equal queries."""
    digest = hashlib.blake2b(f"{seed}/{query}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
