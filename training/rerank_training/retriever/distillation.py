"""Distills a ranker into the encoder of an index: from the arguments of `distill-retriever` to encoder and index.

BM25 and the encoder retrieve passages for every query, among them the encoder's mistakes. The teacher grades them. The
encoder is trained on the graded lists, and encodes the collection again. When the same command is given again, a killed
run resumes after its last finished part, save of the training, or chunk of passages.
"""

from __future__ import annotations

import copy
import errno
import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ir_measures import R, nDCG
from rerank_eval.measures import MetricValues, measure
from rerank_eval.statistics import SIGNIFICANT, compare
from transformers import set_seed

from rerank.collections import beir
from rerank.commands.progress import show_progress
from rerank.commands.run import console
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel, read_qrels, with_known_ids
from rerank.retrieval.build import BuildSettings, Report, VectorSteps
from rerank.retrieval.build_folder import build_folder
from rerank.retrieval.dense import DenseRetriever, open_vector_index
from rerank.retrieval.index import Index, IndexManifest, read_manifest, write_manifest
from rerank.retrieval.sparse_store import FOLDER as SPARSE_FOLDER
from rerank.retrieval.store import PassageStore, PassageTexts
from rerank.types import FirstStage, Passage, Query
from rerank.util.files import atomic_file, atomic_folder, sha256_of_files
from rerank_training.lists.sampling import Pool, make_pool
from rerank_training.lists.settings import TeacherName
from rerank_training.lists.teachers import Teacher, open_teacher
from rerank_training.lists.training_list import TrainingList, graded, read_lists, write_lists
from rerank_training.retriever.arguments import ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE, RetrieverArguments
from rerank_training.retriever.encoder import RetrieverCollator, RetrieverObjective, TrainableEncoder
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import data_hashes, package_versions, report_write_errors
from rerank_training.trainer.losses import RankLoss, rank_loss_named
from rerank_training.trainer.processes import is_main_process, wait_for_all_processes
from rerank_training.trainer.ranking_trainer import RankingTrainer
from rerank_training.trainer.run import check_same_run, refuse_foreign_files, train
from rerank_training.trainer.windows import TrainingWindows, WindowSampling

#: Passages that are retrieved for a held-out query.
_DEPTH = 100
#: Names in the folder of a run. The report is written last.
ENCODER, INDEX, TRAINING, REPORT = "encoder", "index", "training", "report.json"


def distill_retriever(arguments: RetrieverArguments, settings: RunArguments) -> Path:
    """Trains and returns the folder of the run, with `encoder`, its `index`, and report.json.

    Parts of the run that are finished already are kept. All processes train; the main process does everything else,
    and the others wait.

    Raises:
        ConfigError, CollectionError, IndexMismatch: an input cannot be used, or the run is finished already.
    """
    rank_loss = rank_loss_named(arguments.rank_loss)
    settings.check_loads_whole_models("distill-retriever")
    settings.complete_learning_rate(arguments.lora_rank > 0, ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE)
    folder = Path(settings.output_dir).absolute()
    if (folder / REPORT).exists():
        raise ConfigError(f"{folder / REPORT} exists: that run is finished; choose another --output-dir or remove it")
    refuse_foreign_files(folder)
    queries, held_out, qrels = split_queries(Path(arguments.queries), arguments.held_out, Path(arguments.index))
    base, work = Path(arguments.index), folder / TRAINING
    with report_write_errors(folder), settings.main_process_first(local=False):
        folder.mkdir(parents=True, exist_ok=True)
        check_same_run(folder, [arguments, settings], started=work.exists())
    device = settings.device_name
    encoder = Encoder(read_manifest(base).encoder.settings, device)
    if is_main_process() and not (work / "lists.jsonl").exists():
        _mine(arguments, Index(base, encoder), encoder, queries, work / "lists.jsonl")
    wait_for_all_processes()
    if not (folder / ENCODER).exists():
        _train(arguments, settings, rank_loss, encoder, work, folder / ENCODER)
    if is_main_process() and not (folder / INDEX).exists():
        with show_progress(console, "passages") as progress:
            reencode(base, folder / INDEX, Encoder(str(folder / ENCODER), device), progress.report)
    wait_for_all_processes()
    if is_main_process():
        measured = _measure_change(base, folder / INDEX, device, held_out, qrels) if held_out else None
        _write_report(arguments, folder, len(queries), measured)
        console.print(f"encoder and index: {folder}")
        serve = ["rerank", "serve", "--index", str(folder / INDEX), "--encoder", str(folder / ENCODER)]
        console.print(f"serve it: {shlex.join(serve)}", soft_wrap=True)
        if line := gain_line(measured):
            console.print(line, soft_wrap=True)
    return folder


def split_queries(folder: Path, held_out: str, index: Path) -> tuple[list[Query], list[Query], list[Qrel]]:
    """Training queries, held-out queries, and the judgements of the held-out queries.

    Args:
        folder: a folder in BEIR layout, or its file of queries; the judgements are in qrels/{held_out}.tsv next to it.
        held_out: name of the judgements whose queries are held out; empty: no query is held out.
        index: folder of the index that has the judged passages.

    Raises:
        CollectionError: a file cannot be read.
        ConfigError: there are no training queries, or `held_out` is given and has none of the queries.
    """
    queries = beir.queries(folder)
    qrels = _judgements(beir.qrels_file(folder, held_out), queries, index) if held_out else []
    judged = {qrel.query_id for qrel in qrels}
    training = [query for query in queries if query.query_id not in judged]
    measured = [query for query in queries if query.query_id in judged]
    if not training or (held_out and not measured):
        raise ConfigError(
            f"{folder}: of {len(queries)} queries, {len(training)} are left to train on and {len(measured)} have "
            f"judgements in qrels/{held_out or '…'}.tsv; both must be 1 or more: choose another --held-out, or "
            "leave it out"
        )
    return training, measured, qrels


def _judgements(path: Path, queries: Sequence[Query], index: Path) -> list[Qrel]:
    """The judgements of a file, with ids matched to those of the queries and of the passages of an index."""
    return with_known_ids(
        read_qrels(path),
        lambda _: {query.query_id for query in queries},
        lambda doc_ids: PassageTexts(index).texts(sorted(doc_ids)),
    )


def mined_lists(
    index: Index, encoder: Encoder, queries: Sequence[Query], depth: int, teacher: Teacher
) -> Iterator[TrainingList]:
    """One list for each query that retrieves at least two passages.

    Args:
        encoder: the encoder of `index`.
        depth: number of passages that BM25 and dense retrieval each find per query.

    Raises:
        CollectionError: none of the queries retrieves two passages.
    """
    mined = 0
    for query in queries:
        pool, passages = _retrieved(index, encoder, query, depth)
        if len(passages) >= 2:
            mined += 1
            yield TrainingList(query, passages, teacher(pool, passages))
    if not mined:
        raise CollectionError(f"none of {len(queries)} queries finds two passages, so there is nothing to train on")


def _retrieved(index: Index, encoder: Encoder, query: Query, depth: int) -> tuple[Pool, tuple[Passage, ...]]:
    """A pool of BM25's results, which the fusion teacher reads, and all passages, those of dense retrieval first."""
    dense, bm25 = (index.search(stage, [query], depth)[0] for stage in (FirstStage.DENSE, FirstStage.BM25))
    doc_ids = list(dict.fromkeys(doc.doc_id for doc in [*dense, *bm25]))
    passages = {passage.doc_id: passage for passage in index.store.passages(doc_ids) if passage.text.strip()}
    candidates = [replace(passages[doc.doc_id], score=doc.score) for doc in bm25 if doc.doc_id in passages]
    return make_pool(encoder.with_vector(query), candidates, grades={}), tuple(passages.values())


def reencode(index: Path, out: Path, encoder: Encoder, report: Report) -> IndexManifest:
    """Writes a copy of `index` with the vectors of `encoder` to the new folder `out`, and returns its manifest.

    A call after a kill continues with the vectors in OUT.partial, unless another encoder computed them.

    Args:
        encoder: an encoder that reads the same number of tokens of a text as the encoder of `index`.
        report: called with ("vectors", passages done, passages in total).

    Raises:
        ConfigError: `out` exists already.
        IndexMismatch: `index` is not an index.
    """
    before = read_manifest(index)
    plan = {"index": str(index.resolve()), "built": before.created_utc.isoformat(), "encoder": asdict(encoder.id)}
    with build_folder(out, plan, replace_others=True) as build:
        build.step("passages", partial(_copy_texts, index, build.index))
        vectors = VectorSteps(build, encoder, BuildSettings(before.dense, before.encoder_dtype), report)
        vectors.run()
        changed = {
            "encoder": encoder.id,
            "created_utc": datetime.now(UTC),
            **vectors.quality(),
            "seconds": before.seconds | build.seconds,
        }
        manifest = write_manifest(build.index, before.model_copy(update=changed))
        build.finish()
    return manifest


def _copy_texts(index: Path, folder: Path) -> None:
    """Copies an index without its vectors to the new folder of another index.

    Raises:
        OSError: the disk is full.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        shutil.copytree(index, folder, ignore=_without_vectors)
    except shutil.Error as error:  # has one (source, target, text of the OSError) for each file
        _, target, reason = error.args[0][0]
        raise OSError(errno.EIO, reason, target) from error


def _without_vectors(folder: str, names: list[str]) -> list[str]:
    """The files of an index that depend on the vectors; sparse vectors are in a separate folder."""
    of_vectors = [name for name in names if name.endswith((".npy", ".faiss")) or name == "manifest.json"]
    return [] if Path(folder).name == SPARSE_FOLDER else of_vectors


def measure_dense(index: Path, device: str, queries: Sequence[Query], qrels: Sequence[Qrel]) -> MetricValues:
    """R@100 and nDCG@10 of exact dense retrieval over an index; 0 for a query without results."""
    store, encoder = PassageStore(index), Encoder(read_manifest(index).encoder.settings, device)
    dense = DenseRetriever(open_vector_index("flat", index, store.vectors), encoder, len(store))
    found = zip(queries, dense.search(queries, _DEPTH), strict=True)
    return measure((R @ _DEPTH, nDCG @ 10), qrels, {query.query_id: store.scored_docs(hits) for query, hits in found})


def _mine(arguments: RetrieverArguments, index: Index, encoder: Encoder, queries: Sequence[Query], out: Path) -> None:
    """Retrieves passages for all training queries, lets the teacher grade them, and writes the lists."""
    config = Path(arguments.config) if arguments.config else None
    with open_teacher(TeacherName(arguments.teacher), config, arguments.model, arguments.reads_scores) as teacher:
        written = write_lists(out, mined_lists(index, encoder, queries, arguments.depth, teacher))
    console.print(f"{out}: {written:,} lists from {len(queries):,} queries, with the teacher {arguments.teacher}")


def _train(
    arguments: RetrieverArguments, given: RunArguments, rank_loss: RankLoss, base: Encoder, work: Path, out: Path
) -> None:
    """Trains the encoder `base` on the lists in `work` and writes it to `out`."""
    settings = copy.copy(given)  # a training changes its settings
    settings.output_dir = str(work)
    lists = graded(read_lists(work / "lists.jsonl"), work / "lists.jsonl")
    sampling = WindowSampling(arguments.list_size, arguments.list_size, shuffled_share=0)
    set_seed(settings.seed)  # for the initial weights of the adapter
    model = TrainableEncoder(base, arguments.lora_rank)
    trainer = RankingTrainer(
        RetrieverObjective(rank_loss),
        model=model,
        args=settings,
        train_dataset=TrainingWindows(lists, sampling.sample, settings.items_needed(len(lists)), settings.seed),
        data_collator=RetrieverCollator(model.tokenizer, model.max_tokens, model.prompts),
        processing_class=model.tokenizer,
    )
    train(trainer, [arguments, settings])
    if is_main_process():
        with report_write_errors(out), atomic_folder(out) as temporary:
            model.save_pretrained(temporary)


def _measure_change(
    before: Path, after: Path, device: str, queries: Sequence[Query], qrels: Sequence[Qrel]
) -> dict[str, Any]:
    """Measures dense retrieval of the held-out queries with two indexes, and prints and returns the changes."""
    old, new = (measure_dense(index, device, queries, qrels) for index in (before, after))
    changes = {name: compare(new.values(name), old.values(name)) for name in old.mean}
    console.print(f"dense retrieval of {len(queries):,} held-out queries, over all their judged passages:")
    for name, change in changes.items():
        console.print(f"  {name:8} {change.reference:.4f} before, {change.mean:.4f} after; p = {change.p:.2g}")
    return {"p": {name: change.p for name, change in changes.items()}, "before": asdict(old), "after": asdict(new)}


def gain_line(measured: Mapping[str, Any] | None) -> str:
    """The line that says that R@100 has no significant gain; empty if it has one.

    Args:
        measured: result of `_measure_change`; None if no queries were held out.
    """
    if measured is None:
        return "gain: not measured, as no queries were held out; kept: the encoder of the last step"
    name = str(R @ _DEPTH)
    before, after = measured["before"]["mean"][name], measured["after"]["mean"][name]
    if after > before and measured["p"][name] < SIGNIFICANT:
        return ""
    verdict = "not shown, as it may be chance" if after > before else "none"
    return (
        f"gain: {verdict}: {name} {before:.4f} with the encoder at the start, {after:.4f} with the trained one "
        f"(p = {measured['p'][name]:.2g}); kept: the encoder of the last step"
    )


def _write_report(arguments: RetrieverArguments, folder: Path, queries: int, measured: dict[str, Any] | None) -> None:
    """Writes report.json: the command, encoders, measures, versions, and SHA-256 of the input files."""
    index, given = Path(arguments.index), Path(arguments.queries)
    judged = str(beir.qrels_file(given, arguments.held_out)) if arguments.held_out else None
    data = data_hashes([str(beir.queries_file(given)), judged])
    report = {
        "command": shlex.join(["distill-retriever", *sys.argv[1:]]),
        "base": asdict(read_manifest(index).encoder),
        "encoder": asdict(read_manifest(folder / INDEX).encoder),
        "training_queries": queries,
        "data": {**data, "passages.sqlite": sha256_of_files([index / "passages.sqlite"])},
        "versions": package_versions(),
        **({"held_out": measured} if measured else {}),
    }
    with report_write_errors(folder), atomic_file(folder / REPORT) as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
