"""Builds an index in steps. After a kill, the next build repeats only the unfinished one.

The steps are the passages (SQLite), BM25 (Lucene), the vectors, and the index of the vectors (FAISS).
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rerank import __version__
from rerank.collections import Collection
from rerank.errors import CollectionError
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.retrieval.bm25 import K1, B, write_bm25
from rerank.retrieval.build_folder import BuildFolder, build_folder
from rerank.retrieval.dense import open_vector_index, recall_of, write_vector_index
from rerank.retrieval.index import IndexManifest, write_manifest
from rerank.retrieval.index_format import FORMAT, DenseKind
from rerank.retrieval.shards import DenseJob, ShardJob, SparseJob, encode_shards
from rerank.retrieval.sparse_store import join_parts
from rerank.retrieval.store import DuplicateDocId, PassageStore, allocate_vectors, write_passages
from rerank.types import Passage, Precision

log = logging.getLogger(__name__)

#: Progress callback: (step, passages done, passages in total or None if unknown).
Report: TypeAlias = Callable[[str, int, int | None], None]

#: Passages of a shard, see ShardJob.
SHARD_ROWS = 512
#: Fewer texts at once are encoded slower, as a batch has texts of similar lengths.
_LEAST_SHARD_ROWS = 64
#: Passages between two reports of progress while the collection is read.
_REPORT_EVERY = 1000
#: Passages whose first words are the queries of the measured recall, and whose vectors are compared with float32.
_SAMPLE, _RECALL_WORDS, _RECALL_DEPTH = 200, 8, 100


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Settings of a build: kind of dense search, precision and number of workers.

    Attributes:
        dense: kind of dense search.
        encoder_dtype: precision of the encoder; see Encoder.pick_dtype.
        workers: processes that encode, and threads of Lucene and FAISS; 0: as many as this process may use processors,
            but one process on a GPU.
    """

    dense: DenseKind = "flat"
    encoder_dtype: Precision = "float32"
    workers: int = 0

    @property
    def threads(self) -> int:
        """Threads of Lucene and FAISS."""
        return self.workers or len(os.sched_getaffinity(0))


def build_index(
    collection: Collection,
    out: Path,
    encoder: Encoder,
    report: Report = lambda *_: None,
    settings: BuildSettings | None = None,
    sparse_encoder: SparseEncoder | None = None,
) -> IndexManifest:
    """Builds the index of a collection in the new folder `out`, which appears when the index is complete.

    A build that is killed leaves the folder OUT.partial, and the next call with the same arguments goes on there.
    Worker processes import the main module again, so that a script needs `if __name__ == "__main__"`.

    Args:
        collection: the passages to index.
        out: must not exist.
        encoder: computes the vectors.
        report: progress callback.
        settings: how to build it.
        sparse_encoder: computes the sparse vectors; None: the index has none.

    Raises:
        ConfigError: `out` exists already, another build of it runs, or one with other arguments is unfinished.
        CollectionError: the collection is empty or malformed, or a doc_id occurs twice.
    """
    settings = settings or BuildSettings()
    settings = replace(settings, encoder_dtype=encoder.pick_dtype(settings.encoder_dtype))
    plan = {
        "format": FORMAT,
        "collection": collection.name,
        "content": collection.fingerprint(),
        "encoder": asdict(encoder.id),
        "encoder_dtype": settings.encoder_dtype,
        "dense": settings.dense,
        "sparse_encoder": asdict(sparse_encoder.id) if sparse_encoder else None,
    }
    with build_folder(out, plan) as build:
        try:
            dimension = encoder.id.dimension
            build.step("passages", partial(_write_passages, collection, build.index, dimension, report))
        except CollectionError:
            build.discard()
            raise
        build.step("BM25", partial(_write_bm25, build, settings.threads, report))
        steps = VectorSteps(build, encoder, settings, report)
        build.step("vectors", steps.vectors)
        build.step("dense", steps.dense)
        if sparse_encoder is not None:
            build.step("sparse vectors", partial(_write_sparse, build, sparse_encoder, settings, report))
        manifest = IndexManifest(
            format=FORMAT,
            collection=collection.name,
            passages=len(PassageStore(build.index)),
            encoder=encoder.id,
            encoder_dtype=settings.encoder_dtype,
            dense=settings.dense,
            sparse_encoder=sparse_encoder.id if sparse_encoder else None,
            **steps.quality(),
            bm25_k1=K1,
            bm25_b=B,
            versions=_versions(),
            created_utc=datetime.now(UTC),
            seconds=build.seconds,
            files={},  # written by `write_manifest`
        )
        manifest = write_manifest(build.index, manifest)
        build.finish()
    return manifest


@dataclass(frozen=True, slots=True)
class VectorSteps:
    """The steps of a build that depend on the encoder."""

    build: BuildFolder
    encoder: Encoder
    settings: BuildSettings
    report: Report

    def vectors(self) -> float:
        """Encodes the passages; returns the time that it took, summed over workers, in seconds."""
        index, journal, encoder = self.build.index, self.build.folder / "shards", self.encoder
        dtype = self.settings.encoder_dtype
        rows = shard_rows(len(PassageStore(index)))
        job = DenseJob(index, journal, encoder.id, str(encoder.device), dtype, rows)
        return _encode(job, encoder, self.settings, partial(self.report, "vectors"))

    def dense(self) -> None:
        """Writes the file of approximate search, if that was asked for."""
        kind, vectors = self.settings.dense, PassageStore(self.build.index).vectors
        write_vector_index(
            kind, self.build.index, vectors, self.settings.threads, lambda done: self.report(kind, done, len(vectors))
        )

    def quality(self) -> dict[str, float]:
        """The fields of the manifest that say how close the index is to exact search and to float32, from a sample."""
        store = PassageStore(self.build.index)
        rows = np.random.default_rng(0).choice(len(store), min(len(store), _SAMPLE), replace=False)
        passages = store.at_rows(np.sort(rows).tolist())
        recall = 1.0 if self.settings.dense == "flat" else self._recall(store, passages)
        cosine = 1.0 if self.settings.encoder_dtype == "float32" else self._cosine(passages)
        return {"dense_recall_at_100": round(recall, 4), "cosine_to_float32": round(cosine, 6)}

    def _recall(self, store: PassageStore, passages: Sequence[Passage]) -> float:
        queries = [" ".join(passage.text.split()[:_RECALL_WORDS]) for passage in passages]
        opened = open_vector_index(self.settings.dense, self.build.index, store.vectors)
        return recall_of(opened, store.vectors, self.encoder.encode_queries(queries), _RECALL_DEPTH)

    def _cosine(self, passages: Sequence[Passage]) -> float:
        exact = self.encoder.encode_passages([passage.text for passage in passages])
        stored = np.stack([passage.vector for passage in passages if passage.vector is not None])
        return float((exact * stored).sum(axis=1).mean())


def _write_passages(collection: Collection, folder: Path, dimension: int, report: Report) -> None:
    """Reads the collection into the passage store in the new folder, with vectors that are still 0."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    n, empty = 0, list[str]()

    def passages() -> Iterator[Passage]:
        for passage in collection.passages():
            if not passage.text.strip():
                empty.append(passage.doc_id)
            yield passage

    try:
        for n in write_passages(folder, passages()):
            if n % _REPORT_EVERY == 0:
                report("passages", n, None)
    except DuplicateDocId as error:
        lines = ", ".join(map(str, collection.lines_of(error.doc_id)))
        raise CollectionError(f"{error}; it is on the lines {lines}" if lines else str(error)) from error
    if n == 0:
        raise CollectionError(f"collection {collection.name} is empty; it needs at least one passage")
    report("passages", n, n)
    if empty:
        log.warning(
            "%d of %d passages are empty, and found by their vectors at most; the first is %r", len(empty), n, empty[0]
        )
    allocate_vectors(folder, n, dimension)


def _write_bm25(build: BuildFolder, threads: int, report: Report) -> None:
    """Indexes the texts of the passage store with Lucene."""
    store = PassageStore(build.index)
    n = len(store)
    write_bm25(
        store.texts_from(0, n),
        build.folder / "texts",
        build.index / "bm25",
        threads,
        lambda done: report("BM25", done, n),
    )


def _write_sparse(build: BuildFolder, encoder: SparseEncoder, settings: BuildSettings, report: Report) -> float:
    """Encodes the passages as sparse vectors; returns the time that it took, summed over workers, in seconds."""
    dtype = encoder.pick_dtype("auto")
    rows, journal = shard_rows(len(PassageStore(build.index))), build.folder / "sparse-shards"
    job = SparseJob(build.index, journal, encoder.id, str(encoder.device), dtype, rows)
    seconds = _encode(job, encoder, settings, partial(report, "sparse vectors"))
    start_s = time.perf_counter()
    join_parts([job.part(shard) for shard in range(len(job.read_journal()))], build.index, encoder.id.vocabulary_size)
    return seconds + time.perf_counter() - start_s


def shard_rows(passages: int) -> int:
    """Rows of a shard: a small collection has at least 40 shards, so that its progress shows within its first 3 %."""
    return min(SHARD_ROWS, max(_LEAST_SHARD_ROWS, passages // 40))


def _encode(
    job: ShardJob[Any], encoder: Encoder | SparseEncoder, settings: BuildSettings, report: Callable[[int, int], None]
) -> float:
    """Encodes the passages; `report` gets the number of finished ones, and of all. Returns: see `encode_shards`."""
    n = len(PassageStore(job.folder))
    workers = settings.workers or (1 if encoder.device.type == "cuda" else settings.threads)
    return encode_shards(job, encoder, workers, lambda done: report(done, n))


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "rerank": __version__}
    for package in ("pyserini", "faiss-cpu", "faiss-gpu", "sentence-transformers", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
