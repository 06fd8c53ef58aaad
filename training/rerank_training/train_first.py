"""`train-first`: teaches a causal LM to rank by the logits of its identifiers.

train-first --lists train.jsonl --eval_lists held-out.jsonl --base mistralai/Mistral-7B-Instruct-v0.3 --lora_rank 16 \
    --output_dir runs/first
"""

from __future__ import annotations

import logging
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from rerank.commands.cli import run
from rerank.errors import CheckpointError, ConfigError
from rerank.manifest import Manifest
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import Template, load_template
from rerank_training.arguments import RunArguments, parse_arguments
from rerank_training.checkpoint import base_revision, data_hashes, versions, write_result
from rerank_training.data import TrainingList, read_lists
from rerank_training.first_examples import FirstCollator, FirstExamples, pad_id_of
from rerank_training.first_objective import FirstObjective
from rerank_training.losses import RANK_LOSSES
from rerank_training.propensity import inversely_weighted, place_weights
from rerank_training.run import keep_best, passes_needed, result_folder, train
from rerank_training.trainer import RankingTrainer
from rerank_training.windows import HeldOutWindows, TrainingWindows, WindowSampling


@dataclass
class FirstArguments:
    """What FIRST needs beside transformers' own arguments."""

    lists: str = field(metadata={"help": "Training lists; see training/rerank_training/data.py for the forms."})
    base: str = field(metadata={"help": "Causal LM to start from: a folder, or a name on the Hugging Face hub."})
    eval_lists: str | None = field(default=None, metadata={"help": "Held-out lists, measured every eval_steps."})
    qrels: str | None = field(default=None, metadata={"help": "Judgements (TREC form), where lists are requests."})
    max_bad_share: float = field(default=0.01, metadata={"help": "The share of bad lines that is put up with."})
    template: str = field(default="first", metadata={"help": "Prompt template: a name, or a YAML file."})
    identifiers: Literal["letters", "numbers"] = field(default="letters", metadata={"help": "Names of the passages."})
    objective: Literal["lm", "rank", "joint"] = field(
        default="joint", metadata={"help": "lm: write the order; rank: the rank loss; joint: LM + rank_weight * rank."}
    )
    rank_loss: str = field(default="weighted-ranknet", metadata={"help": f"One of {', '.join(RANK_LOSSES)}."})
    rank_weight: float = field(default=10.0, metadata={"help": "Weight of the rank loss in joint."})
    probe_weight: float = field(
        default=0.0, metadata={"help": "Weight of the rank loss on an early layer; 1 helps small models from scratch."}
    )
    window_size: int = field(default=20, metadata={"help": "The most passages of a window."})
    min_window_size: int = field(default=0, metadata={"help": "The fewest; 0: window_size."})
    passage_tokens: int = field(default=256, metadata={"help": "The most tokens of a passage that are shown."})
    shuffled_share: float = field(default=0.5, metadata={"help": "Share of windows in random order, 0-1."})
    inverse_propensity: bool = field(
        default=False, metadata={"help": "Weight lists by how rarely the best passage stands where it does."}
    )
    lora_rank: int = field(default=0, metadata={"help": "Rank of the LoRA adapter; 0 trains all weights."})
    lora_alpha: int = field(default=32, metadata={"help": "LoRA's scale, over its rank."})
    freeze_token_embeddings: bool = field(default=False, metadata={"help": "Leave input embeddings as they are."})


def main() -> None:
    """The console command."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(lambda: train_first(*parse_arguments([FirstArguments, RunArguments])))


def train_first(arguments: FirstArguments, settings: RunArguments) -> Path:
    """Trains, and returns the folder of the result, which `rerank serve --model NAME=FOLDER` takes.

    Raises:
        ConfigError, CollectionError, CheckpointError: something that was given cannot be used.
    """
    if arguments.rank_loss not in RANK_LOSSES:
        raise ConfigError(f"rank_loss {arguments.rank_loss!r} is none of {', '.join(RANK_LOSSES)}")
    folder = result_folder(settings.output_dir)
    template = load_template(arguments.template)
    lists = read_lists(Path(arguments.lists), arguments.max_bad_share, _path(arguments.qrels))
    held_out = _held_out(arguments)
    keep_best(settings, bool(held_out))
    set_seed(settings.seed)  # the adapter's first weights
    model, tokenizer = load_base(arguments)
    examples = _examples(arguments, template, model, tokenizer)
    windows = _windows(arguments, settings, lists)
    trainer = RankingTrainer(
        _objective(arguments, examples, model, windows),
        model=model,
        args=settings,
        train_dataset=windows,
        eval_dataset=HeldOutWindows(held_out, arguments.window_size) if held_out else None,
        data_collator=FirstCollator(examples, pad_id_of(tokenizer)),
        processing_class=tokenizer,
    )
    metrics = train(trainer, [arguments, settings])
    if trainer.is_world_process_zero():
        write_result(folder, trainer.model, tokenizer, template.source, _manifest(arguments, template, model, metrics))
    return folder


def load_base(arguments: FirstArguments) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """The model to train, in float32, with an adapter where one was asked for.

    Raises:
        CheckpointError: the base is no causal LM that can be loaded.
    """
    # A folder by its full path, because an adapter names its base and is served from anywhere.
    base = str(Path(arguments.base).resolve()) if Path(arguments.base).is_dir() else arguments.base
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(base)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"base {arguments.base} is no causal language model that can be loaded: {error}"
        ) from error
    if arguments.freeze_token_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    if arguments.lora_rank:
        lora = LoraConfig(r=arguments.lora_rank, lora_alpha=arguments.lora_alpha, target_modules="all-linear")
        model = get_peft_model(model, lora)
    return model, tokenizer


def _examples(
    arguments: FirstArguments, template: Template, model: Any, tokenizer: PreTrainedTokenizerBase
) -> FirstExamples:
    """Raises: ConfigError when the windows are wider than the tokenizer has identifiers."""
    examples = FirstExamples(
        tokenizer,
        template,
        IdentifierKind(arguments.identifiers),
        context_tokens=context_tokens(model, tokenizer),
        passage_tokens=arguments.passage_tokens,
        with_answer=arguments.objective != "rank",
        with_places=arguments.probe_weight > 0,
    )
    if arguments.window_size > len(examples.identifiers):
        raise ConfigError(
            f"window_size {arguments.window_size} exceeds the {len(examples.identifiers)} single-token identifiers of "
            f"{arguments.base}; use at most {len(examples.identifiers)}"
        )
    return examples


def context_tokens(model: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most positions that the model reads, by the same rule as serving."""
    positions = getattr(model.config, "max_position_embeddings", None)
    return min(limit for limit in (positions, tokenizer.model_max_length) if limit)


def _windows(arguments: FirstArguments, settings: RunArguments, lists: list[TrainingList]) -> TrainingWindows:
    sampling = WindowSampling(
        largest=arguments.window_size,
        smallest=arguments.min_window_size or arguments.window_size,
        shuffled_share=arguments.shuffled_share,
    )
    return TrainingWindows(lists, sampling, passes_needed(settings, len(lists)), settings.seed)


def _objective(
    arguments: FirstArguments, examples: FirstExamples, model: Any, windows: TrainingWindows
) -> FirstObjective:
    rank_loss = RANK_LOSSES[arguments.rank_loss]
    if arguments.inverse_propensity:
        rank_loss = inversely_weighted(rank_loss, place_weights(windows, len(windows), arguments.window_size))
    return FirstObjective(
        objective=arguments.objective,
        rank_loss=rank_loss,
        rank_weight=arguments.rank_weight,
        identifier_ids=examples.identifiers.token_ids,
        probe_weight=arguments.probe_weight,
        probe_layer=-(-2 * model.config.num_hidden_layers // 3),
    )


def _held_out(arguments: FirstArguments) -> list[TrainingList]:
    if arguments.eval_lists is None:
        return []
    return read_lists(Path(arguments.eval_lists), arguments.max_bad_share, _path(arguments.qrels))


def _manifest(arguments: FirstArguments, template: Template, model: Any, metrics: dict[str, float]) -> Manifest:
    return Manifest(
        ranker="first",
        base=arguments.base,
        base_revision=base_revision(arguments.base, model),
        weights_sha256="",
        template_sha256=template.sha256,
        identifiers=arguments.identifiers,
        window_size=arguments.window_size,
        passage_tokens=arguments.passage_tokens,
        command=shlex.join(["train-first", *sys.argv[1:]]),
        data=data_hashes([arguments.lists, arguments.eval_lists, arguments.qrels]),
        metrics={key.removeprefix("eval_"): value for key, value in metrics.items()},
        versions=versions(),
    )


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


if __name__ == "__main__":
    main()
