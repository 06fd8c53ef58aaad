"""Benchmark of indexes: every kind of dense search is built without another encoding, and measured in a service."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest

from rerank.retrieval.index import read_manifest, verify_index
from rerank.retrieval.index_format import DenseKind
from rerank.retrieval.integrity import StoredFile
from scripts.bench import index
from scripts.bench.index import IndexFigures, Latency, _draw, _figures, _variant
from scripts.service import Service


def test_index_gets_another_kind_of_search_without_another_encoding(index_folder: Path, tmp_path: Path) -> None:
    manifest = verify_index(_variant(index_folder, "hnsw", tmp_path))
    assert (manifest.dense, manifest.dense_recall_at_100) == ("hnsw", 1.0)
    assert manifest.files["vectors.npy"] == read_manifest(index_folder).files["vectors.npy"]
    assert verify_index(_variant(index_folder, "hnsw", tmp_path)).created_utc == manifest.created_utc  # not again


@pytest.mark.slow
def test_service_is_measured_once(
    running: Service, index_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "running_service", lambda _: nullcontext(running))
    figures = _figures(index_folder, "flat", tmp_path, ["flea circus", "the tides"])
    assert figures.latency.keys() == {"BM25", "dense", "hybrid"}
    assert all(0 < latency.p50_ms <= latency.p95_ms for latency in figures.latency.values())
    assert 100 < figures.private_mib < figures.resident_mib
    assert _figures(index_folder, "flat", tmp_path, []) == figures  # as it is stored


def test_chart_is_drawn(tmp_path: Path) -> None:
    latency = {name: Latency(1.0, 2.0, 0.5) for name in ("BM25", "dense", "hybrid")}
    figures = [
        IndexFigures(n, kind, 1.0, latency, 100.0, 50.0, {}, {}) for n in (10, 100) for kind in get_args(DenseKind)
    ]
    _draw(figures, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_disk_is_summed_by_part(index_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(index_folder)
    files = {
        "bm25/a": StoredFile(1 << 20, ""),
        "bm25/b": StoredFile(1 << 21, ""),
        "vectors.npy": StoredFile(1 << 22, ""),
    }
    monkeypatch.setattr(index, "read_manifest", lambda _: manifest.model_copy(update={"files": files}))
    assert index._disk_mib(index_folder) == {"bm25": 3.0, "vectors.npy": 4.0}
