"""Re-encoding of an index with another encoder: copies passages and BM25, and resumes encoding after a kill."""

from __future__ import annotations

import errno
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rerank.models.encoder import Encoder
from rerank.retrieval.build import BuildSettings, Report, VectorSteps
from rerank.retrieval.build_folder import build_folder
from rerank.retrieval.index import IndexManifest, read_manifest, write_manifest
from rerank.retrieval.sparse_store import FOLDER as SPARSE_FOLDER
from rerank.retrieval.store import allocate_vectors


def reencode(index: Path, out: Path, encoder: Encoder, report: Report) -> IndexManifest:
    """Writes a copy of `index` with the vectors of `encoder` to the new folder `out`, and returns its manifest.

    A call after a kill goes on with the vectors that OUT.partial has, unless they are another encoder's.

    Args:
        encoder: must read as many tokens of a text as the encoder of `index`.
        report: called with ("vectors", passages done, passages in total).

    Raises:
        ConfigError: `out` exists already.
        IndexMismatch: `index` is not an index.
    """
    before = read_manifest(index)
    plan = {"index": str(index.resolve()), "built": before.created_utc.isoformat(), "encoder": asdict(encoder.id)}
    with build_folder(out, plan, replace_others=True) as build:
        build.step("passages", partial(_copy_texts, index, build.index, before.passages, encoder.id.dimension))
        steps = VectorSteps(build, encoder, BuildSettings(before.dense, before.encoder_dtype), report)
        build.step("vectors", steps.vectors)
        build.step("dense", steps.dense)
        changed = {
            "encoder": encoder.id,
            "created_utc": datetime.now(UTC),
            **steps.quality(),
            "seconds": before.seconds | build.seconds,
        }
        manifest = write_manifest(build.index, before.model_copy(update=changed))
        build.finish()
    return manifest


def _copy_texts(index: Path, folder: Path, passages: int, dimension: int) -> None:
    """Copies all of an index but its vectors to the new folder of another one, with vectors that are still 0.

    Raises:
        OSError: the disk is full.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        shutil.copytree(index, folder, ignore=_without_vectors)
    except shutil.Error as error:  # one failure for each file, with the text of its OSError
        _, target, reason = error.args[0][0]
        raise OSError(errno.EIO, reason, target) from error
    allocate_vectors(folder, passages, dimension)


def _without_vectors(folder: str, names: list[str]) -> list[str]:
    """The files of an index that depend on the vectors; sparse vectors are in a separate folder."""
    of_vectors = [name for name in names if name.endswith((".npy", ".faiss")) or name == "manifest.json"]
    return [] if Path(folder).name == SPARSE_FOLDER else of_vectors
