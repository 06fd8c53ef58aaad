"""Re-encoding of an index with another encoder: copies passages and BM25, and resumes encoding after a kill."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rerank.files import atomic_file, atomic_folder
from rerank.models.encoder import Encoder
from rerank.retrieval.dense import write_hnsw
from rerank.retrieval.index import Manifest, Report, read_manifest, write_manifest
from rerank.retrieval.store import PassageStore
from rerank.types import Matrix

#: Passages between two saves of the progress; a kill costs at most this many.
_CHUNK = 128
#: Files that depend on the encoder.
_NOT_COPIED = ("vectors.npy", "hnsw.faiss", "manifest.json")


def reencode(index: Path, out: Path, encoder: Encoder, report: Report) -> Manifest:
    """Writes a copy of `index` with the vectors of `encoder` to the new folder `out`, and returns its manifest.

    The vectors are first written to a temporary folder beside `out`, from which a call after a kill resumes.

    Args:
        encoder: must read as many tokens of a text as the encoder of `index`.
        report: called with ("vectors", passages done, passages in total).

    Raises:
        ConfigError: `out` exists already.
        IndexMismatch: `index` is not an index.
    """
    before = read_manifest(index)
    unfinished = out.absolute().parent / f".{out.name}.vectors"
    vectors, encode_s = _encode(PassageStore(index), unfinished, encoder, report)
    with atomic_folder(out) as folder:
        shutil.copytree(index, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        shutil.copyfile(unfinished / "vectors.npy", folder / "vectors.npy")
        if before.dense == "hnsw":
            write_hnsw(vectors, folder / "hnsw.faiss")
        changed = {"encoder": encoder.id, "created_utc": datetime.now(UTC), "encode_s": round(encode_s, 3)}
        manifest = write_manifest(folder, before.model_copy(update=changed))
    shutil.rmtree(unfinished)
    return manifest


@dataclass(frozen=True, slots=True)
class _Progress:
    """Number of encoded rows and the time they took, stored beside the vectors."""

    encoder_sha256: str
    rows: int = 0
    spent_s: float = 0.0


def _encode(store: PassageStore, folder: Path, encoder: Encoder, report: Report) -> tuple[Matrix, float]:
    """The complete (N, D) vectors in `folder`, and the time that all calls spent on them, in seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    progress = _read_progress(folder, encoder.id.sha256)
    shape = (len(store), encoder.id.dimension)
    mode = "r+" if progress.rows else "w+"
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", mode=mode, dtype=np.float32, shape=shape)
    start_s = time.perf_counter() - progress.spent_s
    for first in range(progress.rows, len(store), _CHUNK):
        rows = range(first, min(first + _CHUNK, len(store)))
        vectors[rows.start : rows.stop] = encoder.encode([p.text for p in store.passages(store.doc_ids(rows))])
        vectors.flush()
        _write_progress(folder, _Progress(encoder.id.sha256, rows.stop, time.perf_counter() - start_s))
        report("vectors", rows.stop, len(store))
    return vectors, time.perf_counter() - start_s


def _read_progress(folder: Path, encoder_sha256: str) -> _Progress:
    """The stored progress of this encoder; none if the stored vectors are another encoder's."""
    path = folder / "progress.json"
    if path.is_file():
        stored = _Progress(**json.loads(path.read_text(encoding="utf-8")))
        if stored.encoder_sha256 == encoder_sha256:
            return stored
    return _Progress(encoder_sha256)


def _write_progress(folder: Path, progress: _Progress) -> None:
    with atomic_file(folder / "progress.json") as temporary:
        temporary.write_text(json.dumps(asdict(progress)), encoding="utf-8")
