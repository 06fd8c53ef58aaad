"""Trains a PE-Rank ranker: from the arguments of `train-pe-rank` to a checkpoint that can be served."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from transformers import set_seed

from rerank.commands.run import console
from rerank.config import EncoderConfig
from rerank.errors import ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.loading import check_findable
from rerank.models.smollm2 import locate_causal_lm
from rerank.prompting.templates import load_template
from rerank.prompting.tokens import SLACK_TOKENS
from rerank.types import Passage
from rerank_training.lists.align_texts import AlignTexts, read_align_texts
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.pe_rank.model import PEBase, load_pe_base, set_trainable
from rerank_training.pe_rank.objective import (
    ALIGN_TEMPLATE,
    AlignCollator,
    AlignObjective,
    PECollator,
    PEObjective,
    with_text,
)
from rerank_training.pe_rank.published import published_layout
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import read_base_manifest, setting
from rerank_training.trainer.flags import WINDOW_SIZE
from rerank_training.trainer.losses import rank_loss_named, stepwise_listmle
from rerank_training.trainer.ranking_trainer import RankingTrainer
from rerank_training.trainer.run import result_folder, train_checkpoint
from rerank_training.trainer.windows import (
    TrainingWindows,
    held_out_windows,
    read_judgements,
    read_training_lists,
    training_windows,
    with_filled_windows,
)

logger = logging.getLogger(__name__)

#: Default number of tokens of a passage's text.
_TEXT_TOKENS = 64


def train_pe_rank(arguments: PERankArguments, settings: RunArguments, encoder: Encoder | None = None) -> Path:
    """Trains and returns the folder of the checkpoint, which `rerank serve --model NAME=FOLDER` serves.

    Args:
        encoder: the encoder of `arguments`, if it is loaded already.

    Raises:
        ConfigError, CollectionError, CheckpointError: an input cannot be used, or the run is finished already.
    """
    objective = _objective(arguments)
    _check_divided(arguments, settings)
    settings.complete_learning_rate(has_adapter=arguments.lora_rank > 0)
    folder = result_folder(settings.output_dir)
    base_folder = _check_base(arguments)
    trained = read_base_manifest(base_folder, "pe-rank")
    size = setting("window_size", arguments.window_size or None, trained, WINDOW_SIZE)
    arguments = replace(arguments, window_size=size)
    aligns = arguments.objective == "align"
    texts = read_align_texts(Path(arguments.lists), read_judgements(arguments)) if aligns else {}
    lists, held_out = ([], []) if aligns else read_training_lists(arguments)
    arguments = arguments if aligns else with_filled_windows(arguments, lists, trained)
    set_seed(settings.seed)  # for the initial weights of a new projector or adapter
    encoder = encoder or Encoder(arguments.encoder or DEFAULT_ENCODER)
    base = load_pe_base(base_folder, encoder, arguments.template)
    published = arguments.layout == "published"
    if published:
        base.model.layout = published_layout(base, encoder, arguments.objective)
        _check_words(base, arguments)
    arguments = replace(arguments, passage_tokens=_passage_tokens(arguments, base, chain(lists, held_out)))
    set_trainable(base.model, not aligns, arguments.lora_rank)
    if aligns:
        trainer = _trainer_to_align(arguments, settings, encoder, base, texts)
    else:
        trainer = _trainer_to_rank(arguments, settings, objective, encoder, base, lists, held_out)
    return train_checkpoint(
        trainer,
        folder,
        "pe-rank",
        arguments,
        base.tokenizer if base.model.own_vocabulary and not published else None,
        base.template,
        how_to_serve="" if aligns else None,  # a model that is only aligned does not rank yet
        base=arguments.base,
        base_revision=base.revision,
        passage_tokens=arguments.passage_tokens if "{text}" in base.template.body else 0,
        instructions=sum(bool(item.query.instruction) for item in lists),
    )


def _check_words(base: PEBase, arguments: PERankArguments) -> None:
    """Warns if the base is trained with this package's default prompt, because the authors' code uses its own."""
    if arguments.objective == "rank" and base.template.sha256 == load_template("pe_rank_text").sha256:
        logger.warning(
            "--layout published: the model is trained with the words of template pe_rank_text, and the code of "
            "PE-Rank's authors reads it with its own; give its prompt as --template"
        )


def _check_divided(arguments: PERankArguments, settings: RunArguments) -> None:
    """Raises: ConfigError if the arguments are impossible for a model that FSDP divides among processes."""
    settings.check_loads_whole_models("train-pe-rank")
    if settings.fsdp and arguments.decoding == "dynamic" and arguments.eval_lists:
        raise ConfigError(
            "--eval-lists with --decoding dynamic: windows of different sizes take different numbers of forward "
            "passes, which a model that --fsdp divides cannot do; leave one of the three out"
        )


def _check_base(arguments: PERankArguments) -> Path:
    """The folder of the base, which is downloaded if it is a name on the hub.

    Raises:
        ConfigError, CheckpointError: the base or the encoder is neither a folder nor a model on the hub.
    """
    instead = "give a causal language model or a PE-Rank checkpoint (`rerank checkpoint zero-init --out FOLDER`)"
    check_findable(arguments.base, "--base", instead)
    if arguments.encoder:
        check_findable(EncoderConfig.of(arguments.encoder).name, "--encoder", "give the folder of an encoder")
    return Path(locate_causal_lm(arguments.base))


def _passage_tokens(arguments: PERankArguments, base: PEBase, lists: Iterable[TrainingList]) -> int:
    """The value of --passage-tokens; by default 64, or fewer if the prompt of the longest query is too long for it."""
    if arguments.passage_tokens or arguments.objective == "align":
        return arguments.passage_tokens or _TEXT_TOKENS
    template = base.template if "{text}" in base.template.body else with_text(base.template)
    prompts = base.prompts(template, _TEXT_TOKENS)
    query = max((item.query for item in lists), key=lambda query: len(query.text) + len(query.instruction))
    n = arguments.window_size
    without_texts = len(prompts.token_ids(prompts.sanitize(query), [Passage("", "")] * n))
    choices = n - 1 if arguments.decoding == "dynamic" else 0
    fit = (base.context_tokens - without_texts - choices) // n - SLACK_TOKENS
    if fit < _TEXT_TOKENS:
        logger.info(
            "texts are truncated to %d tokens, so that %d of them fit into %d positions", fit, n, base.context_tokens
        )
    return max(1, min(_TEXT_TOKENS, fit))


def _trainer_to_align(
    arguments: PERankArguments, settings: RunArguments, encoder: Encoder, base: PEBase, turns: AlignTexts
) -> RankingTrainer:
    """The trainer of an alignment. Raises: ConfigError if the base cannot write text."""
    if not base.model.own_vocabulary:
        raise ConfigError(
            f"{arguments.base} reads the encoder's token embeddings and writes no text, so it cannot be aligned; use "
            "--objective rank, or a base with a vocabulary"
        )
    texts = list(turns)
    prompts = base.prompts(load_template(ALIGN_TEMPLATE), arguments.passage_tokens)
    table = VectorTable(encoder.encode_passages, texts, console)
    return RankingTrainer(
        AlignObjective(),
        model=base.model,
        args=settings,
        train_dataset=TrainingWindows(texts, _unsampled, settings.items_needed(len(texts)), settings.seed),
        data_collator=AlignCollator(prompts, table, base.tokenizer, turns),
    )


def _unsampled(text: str, seed: str) -> str:
    """The text itself, as a window of `TrainingWindows`: in an alignment, nothing is sampled."""
    return text


def _trainer_to_rank(
    arguments: PERankArguments,
    settings: RunArguments,
    objective: PEObjective,
    encoder: Encoder,
    base: PEBase,
    lists: Sequence[TrainingList],
    held_out: Sequence[TrainingList],
) -> RankingTrainer:
    prompts = base.prompts(base.template, arguments.passage_tokens)
    text_prompts = base.prompts(with_text(base.template), arguments.passage_tokens) if objective.reads_text else None
    parts = [lists, held_out]
    passages = VectorTable(encoder.encode_passages, texts_of(parts, "passages"), console)
    queries = (
        VectorTable(encoder.encode_queries, texts_of(parts, "queries"), console) if prompts.reads_query_vector else None
    )
    return RankingTrainer(
        objective,
        model=base.model,
        args=settings,
        train_dataset=training_windows(arguments, settings, lists),
        eval_dataset=held_out_windows(arguments, held_out),
        data_collator=PECollator(prompts, passages, queries, base.context_tokens, text_prompts, objective.stepwise),
    )


def _objective(arguments: PERankArguments) -> PEObjective:
    stepwise = arguments.decoding == "dynamic"
    return PEObjective(
        rank_loss=stepwise_listmle if stepwise else rank_loss_named(arguments.rank_loss),
        stepwise=stepwise,
        text_weight=arguments.text_weight,
        kl_weight=arguments.kl_weight,
    )
