"""An index on disk: passages, vectors, a Lucene index, and a manifest with its collection, encoder and versions."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from rerank import __version__
from rerank.collections import Collection
from rerank.errors import CollectionError, IndexMismatch
from rerank.files import atomic_folder
from rerank.models.encoder import Encoder, EncoderId
from rerank.retrieval.base import Retriever
from rerank.retrieval.bm25 import K1, B, BM25Retriever, BM25Writer
from rerank.retrieval.dense import DenseRetriever, write_hnsw
from rerank.retrieval.hybrid import HybridRetriever, reciprocal_rank, z_score_sum
from rerank.retrieval.index_format import FORMAT, MANIFEST_FILE, read_index_settings
from rerank.retrieval.integrity import StoredFile, check_files, stored_files
from rerank.retrieval.store import DuplicateDocId, PassageStore, StoreWriter
from rerank.types import FirstStage

#: Passages between two reports of progress: two batches of the encoder, 1.6 s of CPU for its longest inputs.
_ENCODE_STEP = 32

#: Progress callback: (stage, passages done, passages in total or None if unknown).
Report: TypeAlias = Callable[[str, int, int | None], None]


class Manifest(BaseModel):
    """The description of an index, stored as manifest.json.

    Attributes:
        format: version of the folder's layout.
        collection: name of the indexed collection.
        passages: number of passages.
        encoder: the encoder of the vectors.
        dense: kind of the FAISS index: "flat" for exact, "hnsw" for approximate search.
        bm25_k1, bm25_b: parameters of BM25.
        versions: package → version when the index was built.
        created_utc: time when the index was built.
        read_s: time to read the collection and write the Lucene index, in seconds.
        encode_s: time to encode the passages, in seconds.
        files: path in the folder → size and hash; empty for an index of an earlier version, which cannot be verified.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    collection: str
    passages: int
    encoder: EncoderId
    dense: Literal["flat", "hnsw"]
    bm25_k1: float
    bm25_b: float
    versions: dict[str, str]
    created_utc: datetime
    read_s: float
    encode_s: float
    files: dict[str, StoredFile] = {}


class Index:
    """An open index with its passage store and its retrievers.

    Args:
        folder: written by `build_index`.
        encoder: must be the encoder of the index.

    Raises:
        IndexMismatch: `folder` is no index, has another format, was built with another encoder, or is damaged.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self.manifest = read_manifest(folder)
        _check_encoder(folder, self.manifest, encoder.id)
        check_files(folder, self.manifest.files)
        self.store = PassageStore(folder, (self.manifest.passages, encoder.id.dimension))
        bm25 = BM25Retriever(folder / "bm25")
        dense = DenseRetriever(self.store, encoder, folder / "hnsw.faiss" if self.manifest.dense == "hnsw" else None)
        self.retrievers: dict[FirstStage, Retriever] = {
            FirstStage.BM25: bm25,
            FirstStage.DENSE: dense,
            FirstStage.HYBRID_RRF: HybridRetriever(bm25, dense, reciprocal_rank),
            FirstStage.HYBRID_Z_SCORE: HybridRetriever(bm25, dense, z_score_sum),
        }


def build_index(collection: Collection, out: Path, encoder: Encoder, hnsw: bool, report: Report) -> Manifest:
    """Builds the index of a collection in the new folder `out`, which appears when the index is complete.

    Args:
        collection: the passages to index.
        out: must not exist.
        encoder: computes the vectors.
        hnsw: whether to build an HNSW graph for approximate dense search.
        report: progress callback.

    Raises:
        ConfigError: `out` exists already.
        CollectionError: the collection is empty or malformed, or a doc_id occurs twice.
    """
    with atomic_folder(out) as folder:
        writer = StoreWriter(folder)
        start = time.perf_counter()
        passages = _read(collection, writer, folder / "bm25", report)
        read_s, start = time.perf_counter() - start, time.perf_counter()
        _encode(writer, passages, encoder, report)
        encode_s = time.perf_counter() - start
        writer.close()
        if hnsw:
            write_hnsw(PassageStore(folder).vectors, folder / "hnsw.faiss")
        manifest = Manifest(
            format=FORMAT,
            collection=collection.name,
            passages=passages,
            encoder=encoder.id,
            dense="hnsw" if hnsw else "flat",
            bm25_k1=K1,
            bm25_b=B,
            versions=_versions(),
            created_utc=datetime.now(UTC),
            read_s=round(read_s, 3),
            encode_s=round(encode_s, 3),
        )
        return write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Completes an index folder with its manifest, which gets the sizes and hashes of the other files."""
    complete = manifest.model_copy(update={"files": stored_files(folder)})
    (folder / MANIFEST_FILE).write_text(complete.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return complete


def verify_index(folder: Path) -> Manifest:
    """Checks the size and the hash of every file of an index.

    Raises:
        IndexMismatch: `folder` is no index, is damaged, or is of an earlier version, whose manifest has no hashes.
    """
    manifest = read_manifest(folder)
    if not manifest.files:
        raise IndexMismatch(
            f"{folder / MANIFEST_FILE} has no hashes, because an earlier version built the index; build it again"
        )
    check_files(folder, manifest.files, all_hashes=True)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index. Raises: IndexMismatch when `folder` has no manifest of this format."""
    try:
        return Manifest.model_validate(read_index_settings(folder))
    except ValueError as error:
        raise IndexMismatch(f"{folder / MANIFEST_FILE} is invalid; build the index again: {error}") from error


def _read(collection: Collection, writer: StoreWriter, bm25_folder: Path, report: Report) -> int:
    """Reads the collection into the passage store and the Lucene index; returns the number of passages."""
    count = 0
    with BM25Writer(bm25_folder) as bm25:
        try:
            for count, passage in enumerate(writer.add(collection.passages()), start=1):
                bm25.add(passage)
                if count % 100 == 0:
                    report("BM25", count, None)
        except DuplicateDocId as error:
            lines = ", ".join(map(str, collection.lines_of(error.doc_id)))
            raise CollectionError(f"{error}; it is on the lines {lines}" if lines else str(error)) from error
    if count == 0:
        raise CollectionError(f"collection {collection.name} is empty; it needs at least one passage")
    report("BM25", count, count)
    return count


def _encode(writer: StoreWriter, passages: int, encoder: Encoder, report: Report) -> None:
    """Computes and stores the vectors of all passages."""
    vectors = writer.allocate_vectors(passages, encoder.id.dimension)
    truncated: list[int] = []
    done = 0
    for rows, texts in writer.longest_first(_ENCODE_STEP):
        vectors[rows] = encoder.encode(texts)
        truncated += [row for row, flag in zip(rows, encoder.is_truncated(texts), strict=True) if flag]
        done += len(rows)
        report("vectors", done, passages)
    writer.mark_truncated(truncated)


def _check_encoder(folder: Path, manifest: Manifest, encoder: EncoderId) -> None:
    if manifest.encoder != encoder:
        expected = manifest.encoder
        raise IndexMismatch(
            f"{folder} was built with encoder {expected.name} (SHA-256 {expected.sha256}), but the loaded encoder is "
            f"{encoder.name} (SHA-256 {encoder.sha256}); load the former or build the index again"
        )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "rerank": __version__}
    for package in ("pyserini", "faiss-cpu", "faiss-gpu", "sentence-transformers", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
