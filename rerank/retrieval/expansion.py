"""Document expansion: moves the vector of each passage of an index towards those of its nearest passages.

By the cluster hypothesis, similar passages are relevant to the same queries. A passage's vector v becomes v + weight *
the mean of its nearest passages' vectors, at unit length. Queries stay as they are and cost nothing more. For language
models of documents the idea is that of Tao et al., "Language Model Information Retrieval with Document Expansion"
(HLT-NAACL 2006).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.build import BuildSettings, Report, VectorStages, copy_texts
from rerank.retrieval.build_folder import build_folder
from rerank.retrieval.index import Expansion, Index, IndexManifest, write_manifest
from rerank.retrieval.store import VectorWriter
from rerank.types import Matrix, Query
from rerank.util.files import atomic_file

#: Passages between two saves, which are what a kill costs.
_BLOCK = 256
#: Depth of each search for neighbours: a hybrid fuses two results of this depth.
_DEPTH = 100


def expand_index(
    index: Path, out: Path, encoder: Encoder, expansion: Expansion, report: Report = lambda *_: None
) -> IndexManifest:
    """Writes a copy of `index` with expanded vectors to the new folder `out`, and returns its manifest.

    A call after a kill with the same arguments goes on where the last one was.

    Args:
        encoder: that of `index`.
        report: called with ("neighbours", passages done, passages in total).

    Raises:
        ConfigError: `out` exists already, or the vectors of `index` are expanded already.
        IndexMismatch: `index` is not an index, or is another encoder's.
    """
    opened = Index(index, encoder)
    before = opened.manifest
    if before.expansion is not None:
        raise ConfigError(f"{index} is expanded already; expand the index that it was made of")
    plan = {"index": str(index.resolve()), "built": before.created_utc.isoformat(), **expansion.model_dump(mode="json")}
    with build_folder(out, plan) as build:
        build.stage("passages", partial(copy_texts, index, build.index, before.passages, before.encoder.dimension))
        done = build.folder / "expanded.json"
        build.stage("neighbours", partial(_expand, opened, build.index, done, expansion, report))
        stages = VectorStages(build, encoder, BuildSettings(before.dense), report)
        build.stage("dense", stages.dense)
        changed = {
            "expansion": expansion,
            "created_utc": datetime.now(UTC),
            "dense_recall_at_100": stages.quality()["dense_recall_at_100"],
            "seconds": before.seconds | build.seconds,
        }
        manifest = write_manifest(build.index, before.model_copy(update=changed))
        build.finish()
    return manifest


def _expand(index: Index, folder: Path, journal: Path, expansion: Expansion, report: Report) -> None:
    """Stores the expanded vectors in the index in `folder`, block by block.

    Args:
        journal: file with the number of passages that an earlier call has stored.
    """
    n, writer = len(index.store), VectorWriter(folder)
    done = int(json.loads(journal.read_text(encoding="utf-8"))) if journal.exists() else 0
    while done < n:
        report("neighbours", done, n)
        rows = range(done, min(n, done + _BLOCK))
        writer.write(done, _expanded(index, rows, expansion), index.store.truncated[rows.start : rows.stop].tolist())
        done = rows.stop
        with atomic_file(journal) as temporary:
            temporary.write_text(json.dumps(done), encoding="utf-8")
    report("neighbours", n, n)


def _expanded(index: Index, rows: range, expansion: Expansion) -> Matrix:
    """(len(rows), D) expanded vectors."""
    passages = index.store.at_rows(rows)
    queries = [Query(passage.text, vector=passage.vector) for passage in passages]
    found = index.search_rows(expansion.first_stage, queries, max(_DEPTH, expansion.neighbours + 1))
    moved = index.store.vectors.read(rows)
    for vector, row, hits in zip(moved, rows, found, strict=True):
        neighbours = [hit.row for hit in hits if hit.row != row][: expansion.neighbours]
        if neighbours:  # a passage alone in its index, or one without words for BM25, has none
            vector += expansion.weight * index.store.vectors.read(neighbours).mean(axis=0)
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)
