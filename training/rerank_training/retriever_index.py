"""An index with the vectors of another encoder: passages and BM25 are copied, and encoding goes on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rerank.files import atomic_folder
from rerank.models.encoder import Encoder
from rerank.retrieval.dense import write_hnsw
from rerank.retrieval.index import Manifest, Report, read_manifest
from rerank.retrieval.store import PassageStore
from rerank.types import Matrix

#: Passages that a kill can cost.
_CHUNK = 128
#: What belongs to the encoder.
_NOT_COPIED = ("vectors.npy", "hnsw.faiss", "manifest.json")


def reencode(index: Path, out: Path, encoder: Encoder, report: Report) -> Manifest:
    """Writes the index `index` with the vectors of `encoder` to the new folder `out`, which appears when all is done.

    The vectors are written beside it first; a call that was killed goes on where it was.

    Args:
        encoder: reads as much of a text as the one that made `index`.

    Raises:
        ConfigError: `out` exists already.
        IndexMismatch: `index` is no index.
    """
    before = read_manifest(index)
    unfinished = out.absolute().parent / f".{out.name}.vectors"
    vectors, encode_s = _encoded(PassageStore(index), unfinished, encoder, report)
    with atomic_folder(out) as folder:
        shutil.copytree(index, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        shutil.copyfile(unfinished / "vectors.npy", folder / "vectors.npy")
        if before.dense == "hnsw":
            write_hnsw(vectors, folder / "hnsw.faiss")
        changed = {"encoder": encoder.id, "created_utc": datetime.now(UTC), "encode_s": round(encode_s, 3)}
        manifest = before.model_copy(update=changed)
        (folder / "manifest.json").write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(unfinished)
    return manifest


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the encoding has come; stored beside the vectors."""

    encoder_sha256: str
    rows: int = 0
    spent_s: float = 0.0


def _encoded(store: PassageStore, folder: Path, encoder: Encoder, report: Report) -> tuple[Matrix, float]:
    """The (N, D) vectors in `folder`, complete, and how many seconds that took in all."""
    folder.mkdir(parents=True, exist_ok=True)
    progress = _read_progress(folder, encoder.id.sha256)
    shape = (len(store), encoder.id.dimension)
    mode = "r+" if progress.rows else "w+"
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", mode=mode, dtype=np.float32, shape=shape)
    begun = time.perf_counter() - progress.spent_s
    for start in range(progress.rows, len(store), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(store)))
        vectors[rows.start : rows.stop] = encoder.encode([p.text for p in store.passages(store.doc_ids(rows))])
        vectors.flush()
        _write_progress(folder, _Progress(encoder.id.sha256, rows.stop, time.perf_counter() - begun))
        report("vectors", rows.stop, len(store))
    return vectors, time.perf_counter() - begun


def _read_progress(folder: Path, encoder_sha256: str) -> _Progress:
    """Of this encoder; another one's vectors are of no use."""
    path = folder / "progress.json"
    if path.is_file():
        found = _Progress(**json.loads(path.read_text(encoding="utf-8")))
        if found.encoder_sha256 == encoder_sha256:
            return found
    return _Progress(encoder_sha256)


def _write_progress(folder: Path, progress: _Progress) -> None:
    temporary = folder / ".progress.json"
    temporary.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    os.replace(temporary, folder / "progress.json")
