"""`train-pe-rank`: teaches a causal LM to rank passages that it reads as one vector each. The encoder does not learn.

train-pe-rank --stage align --lists train.jsonl --base checkpoints/mistral --output_dir runs/align
train-pe-rank --lists train.jsonl --eval_lists held-out.jsonl --base runs/align/final --output_dir runs/pe-rank
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import set_seed

from rerank.commands.cli import console, run
from rerank.errors import ConfigError
from rerank.files import sha256_of_files
from rerank.manifest import Manifest
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.loading import weight_files
from rerank.prompting.templates import Template, load_template
from rerank.prompting.vector_prompts import VectorPrompts
from rerank_training.arguments import RunArguments, parse_arguments
from rerank_training.checkpoint import data_hashes, versions, write_result
from rerank_training.data import TrainingList, read_lists
from rerank_training.losses import RANK_LOSSES, stepwise_listmle
from rerank_training.pe_align import ALIGN_TEMPLATE, AlignCollator, AlignObjective, passes
from rerank_training.pe_examples import PECollator, VectorTable, beside_vectors, texts_of
from rerank_training.pe_model import PEBase, let_learn, load_pe_base
from rerank_training.pe_objective import PEObjective
from rerank_training.run import keep_best, passes_needed, result_folder, train
from rerank_training.trainer import RankingTrainer
from rerank_training.windows import HeldOutWindows, TrainingWindows, WindowSampling


@dataclass
class PERankArguments:
    """What PE-Rank needs beside transformers' own arguments."""

    lists: str = field(metadata={"help": "Training lists; see training/rerank_training/data.py for the forms."})
    base: str = field(metadata={"help": "Folder of a PE-Rank checkpoint, or of a causal LM, which gets a projector."})
    encoder: str = field(default=DEFAULT_ENCODER, metadata={"help": "Makes the passages' vectors: a folder or a name."})
    stage: Literal["align", "rank"] = field(
        default="rank", metadata={"help": "align: the projector learns to keep the text; rank: all learn to order."}
    )
    eval_lists: str | None = field(default=None, metadata={"help": "rank: held-out lists, measured every eval_steps."})
    qrels: str | None = field(default=None, metadata={"help": "Judgements (TREC form), where lists are requests."})
    max_bad_share: float = field(default=0.01, metadata={"help": "The share of bad lines that is put up with."})
    template: str | None = field(default=None, metadata={"help": "Prompt of a base that names none: a name or a file."})
    decoding: Literal["one_step", "dynamic"] = field(
        default="one_step", metadata={"help": "How it will be served; dynamic reads the choices of the teacher."}
    )
    rank_loss: str = field(default="listmle", metadata={"help": f"One of {', '.join(RANK_LOSSES)}; dynamic: listmle."})
    vectors_weight: float = field(default=1.0, metadata={"help": "Weight of the rank loss on vectors."})
    text_weight: float = field(default=1.0, metadata={"help": "Weight of the rank loss on vectors with their texts."})
    kl_weight: float = field(default=0.2, metadata={"help": "Weight of how far vectors are off vectors with texts."})
    passage_text_tokens: int = field(default=64, metadata={"help": "How much of a text is shown or reconstructed."})
    window_size: int = field(default=20, metadata={"help": "The most passages of a window."})
    min_window_size: int = field(default=0, metadata={"help": "The fewest; 0: window_size."})
    shuffled_share: float = field(default=0.5, metadata={"help": "Share of windows in random order, 0-1."})
    lora_rank: int = field(default=0, metadata={"help": "rank: rank of a LoRA adapter, merged at the end; 0: none."})
    lora_alpha: int = field(default=32, metadata={"help": "LoRA's scale, over its rank."})


def main() -> None:
    """The console command."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(lambda: train_pe_rank(*parse_arguments([PERankArguments, RunArguments])))


def train_pe_rank(arguments: PERankArguments, settings: RunArguments, encoder: Encoder | None = None) -> Path:
    """Trains, and returns the folder of the result, which `rerank serve --model NAME=FOLDER` takes.

    Args:
        encoder: the one that `arguments` names, where it is loaded already.

    Raises:
        ConfigError, CollectionError, CheckpointError: something that was given cannot be used.
    """
    _check(arguments)
    folder = result_folder(settings.output_dir)
    lists, held_out = _lists(arguments, arguments.lists), _lists(arguments, arguments.eval_lists)
    set_seed(settings.seed)  # the first weights of a new projector or adapter
    encoder = encoder or Encoder(arguments.encoder)
    base = load_pe_base(Path(arguments.base), encoder, arguments.template, settings.device)
    let_learn(base.model, arguments.stage == "rank", arguments.lora_rank, arguments.lora_alpha)
    keep_best(settings, bool(held_out))
    if arguments.stage == "align":
        parts = _align(arguments, settings, encoder, base, lists)
    else:
        parts = _rank(arguments, settings, encoder, base, lists, held_out)
    trainer = RankingTrainer(model=base.model, args=settings, **parts)
    metrics = train(trainer, [arguments, settings])
    tokenizer = base.tokenizer if base.model.own_vocabulary else None
    manifest = _manifest(arguments, base.template, metrics)
    write_result(folder, base.model, tokenizer, base.template.source, manifest)
    return folder


def _check(arguments: PERankArguments) -> None:
    """Raises: ConfigError when arguments contradict each other."""
    if arguments.rank_loss not in RANK_LOSSES:
        raise ConfigError(f"rank_loss {arguments.rank_loss!r} is none of {', '.join(RANK_LOSSES)}")
    if arguments.decoding == "dynamic" and arguments.rank_loss != "listmle":
        raise ConfigError(
            f"dynamic decoding learns by listmle, step by step, not by {arguments.rank_loss}; leave it out"
        )
    if arguments.stage == "align" and (arguments.eval_lists or arguments.lora_rank):
        raise ConfigError("eval_lists and lora_rank are for --stage rank; align orders nothing and keeps the layers")


def _lists(arguments: PERankArguments, path: str | None) -> list[TrainingList]:
    qrels = Path(arguments.qrels) if arguments.qrels else None
    return read_lists(Path(path), arguments.max_bad_share, qrels) if path else []


def _align(
    arguments: PERankArguments, settings: RunArguments, encoder: Encoder, base: PEBase, lists: Sequence[TrainingList]
) -> dict[str, Any]:
    """What the trainer needs for the alignment. Raises: ConfigError when the base cannot write."""
    if not base.model.own_vocabulary:
        raise ConfigError(
            f"{arguments.base} reads the encoder's token embeddings and writes no text, so there is nothing to align; "
            "use --stage rank, or a base with a vocabulary of its own"
        )
    texts = list(dict.fromkeys(texts_of(lists, with_queries=False)))
    prompts = _prompts(load_template(ALIGN_TEMPLATE), base, arguments)
    return {
        "objective": AlignObjective(),
        "train_dataset": passes(texts, passes_needed(settings, len(texts)), settings.seed),
        "data_collator": AlignCollator(prompts, VectorTable(encoder, texts, console), base.tokenizer),
    }


def _rank(
    arguments: PERankArguments,
    settings: RunArguments,
    encoder: Encoder,
    base: PEBase,
    lists: Sequence[TrainingList],
    held_out: Sequence[TrainingList],
) -> dict[str, Any]:
    """What the trainer needs for the ranking."""
    objective = _objective(arguments)
    prompts = _prompts(base.template, base, arguments)
    text_prompts = _prompts(beside_vectors(base.template), base, arguments) if objective.reads_text else None
    table = VectorTable(encoder, texts_of([*lists, *held_out], prompts.reads_query_vector), console)
    stepwise = objective.stepwise
    return {
        "objective": objective,
        "train_dataset": _windows(arguments, settings, lists),
        "eval_dataset": HeldOutWindows(held_out, arguments.window_size) if held_out else None,
        "data_collator": PECollator(prompts, table, base.context_tokens, text_prompts, with_choices=stepwise),
    }


def _prompts(template: Template, base: PEBase, arguments: PERankArguments) -> VectorPrompts:
    return VectorPrompts(template, base.tokenizer, base.model.own_vocabulary, arguments.passage_text_tokens)


def _objective(arguments: PERankArguments) -> PEObjective:
    stepwise = arguments.decoding == "dynamic"
    return PEObjective(
        rank_loss=stepwise_listmle if stepwise else RANK_LOSSES[arguments.rank_loss],
        stepwise=stepwise,
        vectors_weight=arguments.vectors_weight,
        text_weight=arguments.text_weight,
        kl_weight=arguments.kl_weight,
    )


def _windows(arguments: PERankArguments, settings: RunArguments, lists: Sequence[TrainingList]) -> TrainingWindows:
    smallest = arguments.min_window_size or arguments.window_size
    sampling = WindowSampling(arguments.window_size, smallest, arguments.shuffled_share)
    return TrainingWindows(lists, sampling, passes_needed(settings, len(lists)), settings.seed)


def _manifest(arguments: PERankArguments, template: Template, metrics: dict[str, float]) -> Manifest:
    return Manifest(
        ranker="pe-rank",
        base=arguments.base,
        base_revision=sha256_of_files(weight_files(Path(arguments.base))),
        weights_sha256="",
        template_sha256=template.sha256,
        window_size=arguments.window_size,
        passage_tokens=arguments.passage_text_tokens if "{text}" in template.body else 0,
        command=shlex.join(["train-pe-rank", *sys.argv[1:]]),
        data=data_hashes([arguments.lists, arguments.eval_lists, arguments.qrels]),
        metrics={key.removeprefix("eval_"): value for key, value in metrics.items()},
        versions=versions(),
    )


if __name__ == "__main__":
    main()
