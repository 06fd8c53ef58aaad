"""Re-encoding of an index with another encoder: copies passages and BM25, and resumes encoding after a kill."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rerank.models.encoder import Encoder
from rerank.retrieval.build import BuildSettings, Report, VectorStages, copy_texts
from rerank.retrieval.build_folder import build_folder
from rerank.retrieval.index import IndexManifest, read_manifest, write_manifest


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
        build.stage("passages", partial(copy_texts, index, build.index, before.passages, encoder.id.dimension))
        stages = VectorStages(build, encoder, BuildSettings(before.dense, before.encoder_dtype), report)
        build.stage("vectors", stages.vectors)
        build.stage("dense", stages.dense)
        changed = {
            "encoder": encoder.id,
            "expansion": None,
            "created_utc": datetime.now(UTC),
            **stages.quality(),
            "seconds": before.seconds | build.seconds,
        }
        manifest = write_manifest(build.index, before.model_copy(update=changed))
        build.finish()
    return manifest
