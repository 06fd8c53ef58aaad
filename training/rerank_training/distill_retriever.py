"""`distill-retriever`: teaches the encoder of an index to find what a ranker puts first. No judgement is trained on.

distill-retriever --index indexes/cranfield --queries cranfield --held_out test --output_dir runs/retriever
rerank serve --index runs/retriever/index --encoder runs/retriever/encoder

Each round lets BM25 and the encoder, as it is then, find passages for every query (so that its newest mistakes are
among them), has the teacher grade them, trains, and encodes the collection anew. A run that is killed goes on from its
last step, save or chunk of passages when the same command is given again.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import set_seed

from rerank.collections.requests import Qrel
from rerank.commands.cli import console, run
from rerank.commands.display import indexing_progress
from rerank.errors import ConfigError
from rerank.files import atomic_folder, sha256_of_files
from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index, read_manifest
from rerank.types import Query
from rerank_training.arguments import RunArguments, parse_arguments
from rerank_training.checkpoint import data_hashes, naming_write_errors, versions
from rerank_training.data import read_lists, write_lists
from rerank_training.losses import RANK_LOSSES
from rerank_training.retriever_data import Lessons, opened_teacher, split_queries
from rerank_training.retriever_index import reencode
from rerank_training.retriever_model import TrainableEncoder
from rerank_training.retriever_objective import RetrieverCollator, RetrieverObjective
from rerank_training.run import check_same_run, keep_best, passes_needed, train
from rerank_training.trainer import RankingTrainer
from rerank_training.windows import TrainingWindows, WindowSampling

#: Losses that read how far apart the teacher's scores are. A reranker says an order only.
_READS_DISTANCES = {"kl", "listnet", "margin-mse"}
#: In the folder of a run; the last one is written when all else is done.
ENCODER, INDEX, REPORT = "encoder", "index", "report.json"


@dataclass
class RetrieverArguments:
    """What the distillation needs beside transformers' own arguments."""

    index: str = field(metadata={"help": "Folder that `rerank index` wrote; its encoder is the one that learns."})
    queries: str = field(metadata={"help": "Folder in BEIR layout: queries.jsonl, and qrels/ for --held_out."})
    held_out: str = field(
        default="", metadata={"help": "Queries that qrels/NAME.tsv judges are not trained on but measured."}
    )
    teacher: Literal["fusion", "reranker"] = field(
        default="fusion", metadata={"help": "fusion: z-scores of BM25 and the untrained encoder; or a ranker of ours."}
    )
    config: str | None = field(default=None, metadata={"help": "reranker: settings of its models; see serve."})
    model: str = field(default="", metadata={"help": "reranker: one of the models; empty: the first."})
    rank_loss: str = field(default="ranknet", metadata={"help": f"One of {', '.join(RANK_LOSSES)}."})
    scale: float = field(default=20.0, metadata={"help": "What cosines are multiplied by in the loss."})
    in_batch_weight: float = field(
        default=0.0, metadata={"help": "Weight of telling the best passage from those of the batch's other queries."}
    )
    rounds: int = field(default=1, metadata={"help": "How often passages are found, graded and learnt from."})
    depth: int = field(default=100, metadata={"help": "How many passages BM25 and the encoder find, each."})
    list_size: int = field(default=16, metadata={"help": "How many of a query's passages a step reads, at random."})
    text_tokens: int = field(default=0, metadata={"help": "Where training cuts texts; 0: where the encoder does."})
    lora_rank: int = field(default=16, metadata={"help": "Rank of an adapter, merged at the end; 0: none."})
    lora_alpha: int = field(default=32, metadata={"help": "LoRA's scale, over its rank."})


@dataclass
class RetrieverRunArguments(RunArguments):
    """transformers' own arguments, with defaults for a small encoder with an adapter."""

    learning_rate: float = field(default=2e-4, metadata={"help": "Peak learning rate."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of rising learning rate; below 1: a share."})
    per_device_train_batch_size: int = field(default=8, metadata={"help": "Queries a step and device."})


def main() -> None:
    """The console command."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(lambda: distill_retriever(*parse_arguments([RetrieverArguments, RetrieverRunArguments])))


def distill_retriever(arguments: RetrieverArguments, settings: RunArguments) -> Path:
    """Trains, and returns the folder of the run: `encoder`, the `index` that it made, and report.json.

    Raises:
        ConfigError, CollectionError, IndexMismatch: something that was given cannot be used.
    """
    _check(arguments, settings)
    folder = Path(settings.output_dir).absolute()
    if (folder / REPORT).exists():
        raise ConfigError(f"{folder / REPORT} exists: that run is finished; choose another output_dir or remove it")
    queries, held_out, qrels = split_queries(Path(arguments.queries), arguments.held_out)
    with naming_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_same_run(folder, [arguments, settings])
    index = Path(arguments.index)
    for number in range(1, arguments.rounds + 1):
        place = folder if number == arguments.rounds else folder / f"round-{number}"
        _round(index, place, folder / f"round-{number}", queries, arguments, settings)
        index = place / INDEX
    _report(folder, len(queries), held_out, qrels, arguments, settings)
    return folder


def _check(arguments: RetrieverArguments, settings: RunArguments) -> None:
    """Raises: ConfigError when arguments contradict each other."""
    if arguments.rank_loss not in RANK_LOSSES:
        raise ConfigError(f"rank_loss {arguments.rank_loss!r} is none of {', '.join(RANK_LOSSES)}")
    if arguments.teacher == "reranker" and arguments.rank_loss in _READS_DISTANCES:
        raise ConfigError(
            f"a reranker says an order, {arguments.rank_loss} reads how far apart scores are; use --rank_loss "
            "ranknet or --teacher fusion"
        )
    if arguments.rounds < 1:
        raise ConfigError(f"{arguments.rounds} rounds train nothing; use 1 or more")
    if settings.world_size > 1:
        raise ConfigError(f"{settings.world_size} processes would write the same files; start one, without a launcher")


def _round(
    index: Path,
    place: Path,
    work: Path,
    queries: Sequence[Query],
    arguments: RetrieverArguments,
    settings: RunArguments,
) -> None:
    """From an index to a better encoder and its index, in `place`; what stands there already is kept.

    Args:
        work: where the lists and the saves of the training are.
    """
    device = str(settings.device)
    encoder = Encoder(read_manifest(index).encoder.name, device)
    if not (work / "lists.jsonl").exists():
        _teach(index, encoder, work / "lists.jsonl", queries, arguments, device)
    if not (place / ENCODER).exists():
        _train(encoder.folder, place / ENCODER, work, arguments, settings)
    if not (place / INDEX).exists():
        with naming_write_errors(place / INDEX), indexing_progress(console) as progress:
            reencode(index, place / INDEX, Encoder(str(place / ENCODER), device), progress.report)


def _teach(
    index: Path, encoder: Encoder, out: Path, queries: Sequence[Query], arguments: RetrieverArguments, device: str
) -> None:
    """Finds passages for all queries, has them graded, and writes the lists."""
    current = Index(index, encoder)
    base_folder, base, base_encoder = Path(arguments.index), current, encoder
    if index != base_folder:
        base_encoder = Encoder(read_manifest(base_folder).encoder.name, device)
        base = Index(base_folder, base_encoder)
    config = Path(arguments.config) if arguments.config else None
    with opened_teacher(arguments.teacher, config, arguments.model) as teacher:
        lessons = Lessons(base, base_encoder, current, arguments.depth)
        written = write_lists(out, lessons.lists(queries, teacher))
    console.print(f"{out}: {written:,} lists from {len(queries):,} queries, taught by {arguments.teacher}")


def _train(base: Path, out: Path, work: Path, arguments: RetrieverArguments, settings: RunArguments) -> None:
    """Trains the encoder in `base` on the lists in `work`, and writes it to `out`."""
    settings = copy.copy(settings)  # training changes them, and each round has a folder of its own
    settings.output_dir = str(work)
    lists = read_lists(work / "lists.jsonl")
    sampling = WindowSampling(arguments.list_size, arguments.list_size, shuffled_share=0)
    keep_best(settings, held_out=False)
    set_seed(settings.seed)  # the adapter's first weights
    model = TrainableEncoder(base, arguments.lora_rank, arguments.lora_alpha)
    cut = min(arguments.text_tokens or model.max_tokens, model.max_tokens)
    trainer = RankingTrainer(
        RetrieverObjective(RANK_LOSSES[arguments.rank_loss], arguments.scale, arguments.in_batch_weight),
        model=model,
        args=settings,
        train_dataset=TrainingWindows(lists, sampling, passes_needed(settings, len(lists)), settings.seed),
        data_collator=RetrieverCollator(model.tokenizer, cut),
        processing_class=model.tokenizer,
    )
    train(trainer, [arguments, settings])
    with naming_write_errors(out), atomic_folder(out) as building:
        model.save_pretrained(building)


def _report(
    folder: Path,
    queries: int,
    held_out: Sequence[Query],
    qrels: Sequence[Qrel],
    arguments: RetrieverArguments,
    settings: RunArguments,
) -> None:
    """Measures the held-out queries, prints the change, and writes report.json."""
    base, made = (read_manifest(path).encoder for path in (Path(arguments.index), folder / INDEX))
    report: dict[str, Any] = {
        "command": shlex.join(["distill-retriever", *sys.argv[1:]]),
        "base": asdict(base),
        "encoder": asdict(made),
        "training_queries": queries,
        "data": _data(arguments),
        "versions": versions(),
    }
    if held_out:
        report["held_out"] = _measure(folder, held_out, qrels, arguments, str(settings.device))
    with naming_write_errors(folder):
        temporary = folder / f".{REPORT}"
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, folder / REPORT)


def _measure(
    folder: Path, held_out: Sequence[Query], qrels: Sequence[Qrel], arguments: RetrieverArguments, device: str
) -> dict[str, Any]:
    """The held-out queries with the index that was given and with the one that was made."""
    from rerank_training.retriever_evaluation import changes, measured  # an extra, for those who measure

    before = measured(Path(arguments.index), device, held_out, qrels)
    after = measured(folder / INDEX, device, held_out, qrels)
    found = changes(before, after)
    console.print(f"dense retrieval of {len(held_out):,} queries that were not trained on, before and after")
    for name, change in found.items():
        console.print(f"  {name:8} {change.before:.4f} → {change.after:.4f}, p = {change.p:.2g} (paired t-test)")
    return {"changes": {name: asdict(change) for name, change in found.items()}, "before": before, "after": after}


def _data(arguments: RetrieverArguments) -> dict[str, str]:
    """SHA-256 of what was read."""
    queries = Path(arguments.queries)
    judged = queries / "qrels" / f"{arguments.held_out}.tsv"
    hashes = data_hashes([str(queries / "queries.jsonl"), str(judged) if arguments.held_out else None])
    return {**hashes, "passages.sqlite": sha256_of_files([Path(arguments.index) / "passages.sqlite"])}


if __name__ == "__main__":
    main()
