"""Trains an E2Rank model: from the arguments of `train-e2rank` to an encoder that retrieves and ranks."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from transformers import set_seed

from rerank.config import EncoderConfig
from rerank.config.models import E2RANK_INSTRUCTION
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.models.tokenizer import load_tokenizer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import load_template
from rerank.rankers.e2rank import E2RankPrompts
from rerank_training.e2rank.arguments import ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE, E2RankArguments
from rerank_training.e2rank.objective import E2RankCollator, E2RankObjective, ListEncoder
from rerank_training.retriever.objective import RetrieverCollator
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.base_manifest import read_base_manifest, setting
from rerank_training.trainer.checkpoint import write_checkpoint
from rerank_training.trainer.flags import WINDOW_SIZE
from rerank_training.trainer.losses import rank_loss_named
from rerank_training.trainer.ranking_trainer import RankingTrainer
from rerank_training.trainer.reports import print_summary
from rerank_training.trainer.run import result_folder, train
from rerank_training.trainer.windows import held_out_windows, read_training_lists, training_windows, with_filled_windows


def train_e2rank(arguments: E2RankArguments, settings: RunArguments) -> Path:
    """Trains and returns the folder of the encoder, which states pooling, prompts, end token and instruction.

    Raises:
        ConfigError, CollectionError, CheckpointError: an input cannot be used, or the run is finished already.
    """
    rank_loss = rank_loss_named(arguments.rank_loss)
    settings.check_loads_whole_models("train-e2rank")
    settings.complete_learning_rate(arguments.lora_rank > 0, ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE)
    folder = result_folder(settings.output_dir)
    arguments, instruction = _as_trained(arguments)
    lists, held_out = read_training_lists(arguments)
    arguments = with_filled_windows(arguments, lists, EncoderConfig.of(arguments.base).name)
    encoder = Encoder(EncoderConfig.of(arguments.base), str(settings.device))
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
    metrics = train(trainer, [arguments, settings])
    if trainer.is_world_process_zero():
        write_checkpoint(
            folder,
            "e2rank",
            arguments,
            metrics,
            model,
            window_size=arguments.window_size,
            base=arguments.base,
            base_revision=encoder.id.sha256,
            passage_tokens=arguments.passage_tokens,
            instruction=instruction,
        )
        print_summary(trainer, folder, served=False)
        name = shlex.quote(str(folder))
        print(f"index with it: rerank index --collection COLLECTION --out INDEX --encoder {name}")
        print(f"serve it: rerank serve --encoder {name} --model {shlex.quote(f'default={folder}')}", flush=True)
    return folder


def _as_trained(arguments: E2RankArguments) -> tuple[E2RankArguments, str]:
    """The arguments and the instruction, from the base's training where no flag gives others."""
    trained = read_base_manifest(EncoderConfig.of(arguments.base).name, "e2rank")
    window_size = setting("window_size", arguments.window_size or None, trained, WINDOW_SIZE)
    instruction = setting("instruction", arguments.instruction, trained, E2RANK_INSTRUCTION)
    return replace(arguments, window_size=window_size), instruction


def _prompts(encoder: Encoder, arguments: E2RankArguments, instruction: str) -> E2RankPrompts:
    """The prompts as serving renders them, with all passages of a window."""
    style = PromptStyle(max_words=arguments.passage_tokens)  # a token is a word at most
    template = load_template("e2rank").with_style(style)
    tokenizer = load_tokenizer(encoder.folder)
    return E2RankPrompts(tokenizer, encoder.id.max_tokens, template, instruction, arguments.window_size)
