"""Builds an index in steps. After a kill, the next build repeats the unfinished step only.

The steps are the passages (SQLite), BM25 (Lucene), the vectors, and the index of the vectors (FAISS).
"""

from __future__ import annotations

import errno
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
from rerank.retrieval.shards import DenseJob, SparseJob, encode_shards
from rerank.retrieval.store import DuplicateDocId, PassageStore, PassageTexts, write_passages
from rerank.types import Passage, Precision

log = logging.getLogger(__name__)

#: Progress callback: (step, passages done, passages in total or None if unknown).
Report: TypeAlias = Callable[[str, int, int | None], None]

#: Passages in a shard of a large collection, see ShardJob.
SHARD_ROWS = 512
#: Least number of passages in a shard: batches of fewer texts have texts of less similar lengths, and are slower.
_LEAST_SHARD_ROWS = 64
#: Passages between two reports of progress while the collection is read.
_REPORT_EVERY = 1000
#: Passages of the sample on which recall, and the cosine to float32, are measured.
_SAMPLE = 200
#: First words of a passage in the sample, which are the query that recall is measured with.
_RECALL_WORDS = 8
#: Number of best passages of a query in recall.
_RECALL_DEPTH = 100


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Settings of a build: kind of dense search, precision and number of workers.

    Attributes:
        dense: kind of dense search.
        encoder_dtype: precision of the encoder; see Encoder.pick_dtype.
        workers: number of processes that encode, and of threads of Lucene and FAISS; 0: one for each processor that
            this process may use, but one encoding process on a GPU.
    """

    dense: DenseKind = "flat"
    encoder_dtype: Precision = "float32"
    workers: int = 0

    @property
    def threads(self) -> int:
        """Number of threads of Lucene and FAISS."""
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

    A killed build leaves the folder OUT.partial, from which the next call with the same arguments resumes. Worker
    processes import the main module again, so a script that calls this function needs `if __name__ == "__main__"`.

    Args:
        collection: the passages to index.
        out: path of the new folder, which must not exist.
        encoder: the encoder of the vectors.
        report: progress callback.
        settings: settings of the build; None for the defaults.
        sparse_encoder: the encoder of the sparse vectors; None for an index without them.

    Raises:
        ConfigError: `out` exists already, another process is building it, or OUT.partial is of other arguments.
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
            build.step("passages", partial(_write_passages, collection, build.index, report))
        except CollectionError:
            build.discard()
            raise
        build.step("BM25", partial(_write_bm25, build, settings.threads, report))
        vectors = VectorSteps(build, encoder, settings, report)
        vectors.run()
        if sparse_encoder is not None:
            _encode(
                "sparse vectors", SparseJob, build, sparse_encoder, sparse_encoder.pick_dtype("auto"), settings, report
            )
        manifest = IndexManifest(
            format=FORMAT,
            collection=collection.name,
            passages=len(PassageTexts(build.index)),
            encoder=encoder.id,
            encoder_dtype=settings.encoder_dtype,
            dense=settings.dense,
            sparse_encoder=sparse_encoder.id if sparse_encoder else None,
            **vectors.quality(),
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

    def run(self) -> None:
        """Encodes the passages, and writes the graph of approximate search if the settings ask for it."""
        self._check_disk_space()
        _encode("vectors", DenseJob, self.build, self.encoder, self.settings.encoder_dtype, self.settings, self.report)
        self.build.step("dense", self._write_vector_index)

    def _check_disk_space(self) -> None:
        """Raises: OSError if the disk has no space for the vectors as parts and joined; encoding may take hours."""
        if "vectors" in self.build.seconds:
            return
        encoded = sum(part.stat().st_size for part in (self.build.folder / "vectors").glob("*.npz"))
        rows = len(PassageTexts(self.build.index))
        needed = 2 * rows * self.encoder.id.dimension * np.float32().nbytes - encoded
        if (free := shutil.disk_usage(self.build.folder).free) < needed:
            sizes = f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
            raise OSError(errno.ENOSPC, f"the vectors of {rows:,} passages need {sizes}", str(self.build.folder))

    def _write_vector_index(self) -> None:
        kind, vectors = self.settings.dense, PassageStore(self.build.index).vectors
        write_vector_index(
            kind, self.build.index, vectors, self.settings.threads, lambda done: self.report(kind, done, len(vectors))
        )

    def quality(self) -> dict[str, float]:
        """Fields of the manifest, measured on a sample: recall against exact search, and mean cosine to float32."""
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


def _write_passages(collection: Collection, folder: Path, report: Report) -> None:
    """Writes the texts of the collection to the new folder. Raises: CollectionError."""
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
        log.warning("%d of %d passages are empty, so BM25 cannot find them; the first is %r", len(empty), n, empty[0])


def _write_bm25(build: BuildFolder, threads: int, report: Report) -> None:
    """Indexes the texts with Lucene."""
    store = PassageTexts(build.index)
    n = len(store)
    write_bm25(
        store.texts_from(0, n),
        build.folder / "texts",
        build.index / "bm25",
        threads,
        lambda done: report("BM25", done, n),
    )


def shard_rows(passages: int) -> int:
    """Rows of a shard: in a small collection a 40th of the passages, so that progress is shown soon."""
    return min(SHARD_ROWS, max(_LEAST_SHARD_ROWS, passages // 40))


def _encode(
    step: str,
    job_type: type[DenseJob] | type[SparseJob],
    build: BuildFolder,
    encoder: Any,
    dtype: Precision,
    settings: BuildSettings,
    report: Report,
) -> None:
    """The step of a build that encodes the passages, whose duration is the sum over the workers.

    Args:
        encoder: an encoder of the vectors of `job_type`.
    """
    n = len(PassageTexts(build.index))
    job = job_type(build.index, build.folder / step, encoder.id, str(encoder.device), dtype, shard_rows(n))
    workers = settings.workers or (1 if encoder.device.type == "cuda" else settings.threads)

    def encode_and_join() -> float:
        seconds = encode_shards(job, encoder, workers, lambda done: report(step, done, n))
        start_s = time.perf_counter()
        job.join()
        return seconds + time.perf_counter() - start_s

    build.step(step, encode_and_join)
    shutil.rmtree(job.parts, ignore_errors=True)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "rerank": __version__}
    for package in ("pyserini", "faiss-cpu", "faiss-gpu", "sentence-transformers", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
