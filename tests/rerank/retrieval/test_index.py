"""Indexes: building, opening, and the refusal of indexes that do not fit."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rerank_eval.measures import BEIR, measure
from rerank_eval.qrels import read_beir_qrels

from rerank.collections import Collection, open_collection
from rerank.collections.requests import read_beir_queries
from rerank.errors import CollectionError, ConfigError, IndexMismatch
from rerank.models.encoder import Encoder
from rerank.retrieval.index import FORMAT, Index, build_index, read_manifest
from rerank.types import FirstStage, Passage, Query
from tests.conftest import PASSAGES


def nothing(*_: object) -> None:
    """A progress callback that does nothing."""


@pytest.mark.parametrize("first_stage", FirstStage)
def test_every_first_stage_finds_the_passage(index: Index, first_stage: FirstStage) -> None:
    found = index.retrievers[first_stage].search([Query("what causes the tides of the moon")], 5)[0]
    assert {hit.doc_id for hit in found[:2]} == {"moon", "tides"}
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


def test_manifest_describes_the_index(index: Index, encoder: Encoder) -> None:
    manifest = index.manifest
    assert (manifest.format, manifest.collection, manifest.passages) == (FORMAT, "twelve", len(PASSAGES))
    assert (manifest.encoder, manifest.dense, manifest.bm25_k1, manifest.bm25_b) == (encoder.id, "flat", 0.9, 0.4)
    assert {"python", "rerank", "pyserini", "torch"} <= manifest.versions.keys()


def test_stored_vectors_equal_those_of_the_encoder(index: Index, encoder: Encoder) -> None:
    passages = index.store.passages(list(PASSAGES))
    stored = np.stack([passage.vector for passage in passages if passage.vector is not None])
    np.testing.assert_allclose(stored, encoder.encode([passage.text for passage in passages]), atol=1e-5)


def test_passage_text_is_title_and_text(index: Index) -> None:
    title, text = PASSAGES["moon"]
    assert index.store.passages(["moon"])[0].text == f"{title} {text}"


def test_hnsw_index_is_opened_and_searched(encoder: Encoder, beir_folder: Path, tmp_path: Path) -> None:
    build_index(open_collection(str(beir_folder)), tmp_path / "hnsw", encoder, hnsw=True, report=nothing)
    opened = Index(tmp_path / "hnsw", encoder)
    assert opened.manifest.dense == "hnsw"
    assert opened.retrievers[FirstStage.DENSE].search([Query("string instruments")], 2)[0][0].doc_id == "violin"


def test_passage_that_is_too_long_for_the_encoder_is_marked(encoder: Encoder, tmp_path: Path) -> None:
    rows = [Passage("short", "a b c"), Passage("long", "word " * (encoder.id.max_tokens + 1))]
    build_index(Collection("two", lambda: iter(rows)), tmp_path / "two", encoder, hnsw=False, report=nothing)
    store = Index(tmp_path / "two", encoder).store
    assert [passage.vector_truncated for passage in store.passages(["short", "long"])] == [False, True]


def test_other_encoder_is_refused(index_folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(index_folder, tmp_path / "copy"))
    manifest = read_manifest(copy)
    changed = manifest.model_copy(update={"encoder": replace(manifest.encoder, name="other/encoder", sha256="0" * 64)})
    (copy / "manifest.json").write_text(changed.model_dump_json(), encoding="utf-8")
    with pytest.raises(
        IndexMismatch, match=rf"built with encoder other/encoder .* loaded encoder is {encoder.id.name}"
    ):
        Index(copy, encoder)


def test_other_format_is_refused(index_folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(index_folder, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    (copy / "manifest.json").write_text(json.dumps(manifest | {"format": "rerank-index-0"}), encoding="utf-8")
    with pytest.raises(IndexMismatch, match=rf"has format rerank-index-0, but this version reads {FORMAT}"):
        Index(copy, encoder)


@pytest.mark.parametrize("content", ["", "[]", "{", f'{{"format": "{FORMAT}"}}'])
def test_invalid_manifest_is_refused(content: str, encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(IndexMismatch, match=r"manifest\.json is invalid"):
        Index(tmp_path, encoder)


def test_folder_without_an_index_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(IndexMismatch, match=r"no index: it has no manifest\.json; build one with `rerank index"):
        Index(tmp_path, encoder)


def test_index_is_not_overwritten(encoder: Encoder, beir_folder: Path, index_folder: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        build_index(open_collection(str(beir_folder)), index_folder, encoder, hnsw=False, report=nothing)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty"),
        ([Passage("a", "x"), Passage("a", "y")], "'a' occurs twice"),
        ([Passage("a b", "x")], "white space"),
    ],
)
def test_invalid_collection_leaves_no_index(
    encoder: Encoder, tmp_path: Path, rows: list[Passage], message: str
) -> None:
    with pytest.raises(CollectionError, match=message):
        build_index(Collection("bad", lambda: iter(rows)), tmp_path / "out", encoder, hnsw=False, report=nothing)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_killed_build_leaves_no_index_and_the_next_build_succeeds(
    beir_folder: Path, encoder: Encoder, tmp_path: Path
) -> None:
    """The build is killed when it starts to encode."""
    out = tmp_path / "index"
    command = [sys.executable, "-m", "rerank.commands.cli", "index", "--collection", str(beir_folder), "--out"]
    with subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL) as build:
        while build.poll() is None:
            if list(tmp_path.glob(".index.building-*/vectors.npy")):
                build.kill()
            time.sleep(0.001)
    assert build.returncode == -signal.SIGKILL
    assert not out.exists()
    build_index(open_collection(str(beir_folder)), out, encoder, hnsw=False, report=nothing)
    assert len(Index(out, encoder).store) == len(PASSAGES)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.shared
@pytest.mark.timeout(600)
def test_cranfield_figures(shared: Path, encoder: Encoder, tmp_path: Path) -> None:
    """nDCG@10 with title + text, k1 .9, b .4: BM25 .365, dense .400, RRF .431."""
    folder = shared / "cranfield"
    build_index(open_collection(str(folder)), tmp_path / "cranfield", encoder, hnsw=False, report=nothing)
    opened, queries, qrels = Index(tmp_path / "cranfield", encoder), read_beir_queries(folder), read_beir_qrels(folder)
    found = {}
    for first_stage in (FirstStage.BM25, FirstStage.DENSE, FirstStage.HYBRID_RRF):
        runs = opened.retrievers[first_stage].search(queries, 100)
        run = {query.query_id: hits for query, hits in zip(queries, runs, strict=True)}
        found[first_stage.value] = measure(BEIR, qrels, run).mean["nDCG@10"]
    assert found == pytest.approx({"bm25": 0.365, "dense": 0.400, "hybrid-rrf": 0.431}, abs=0.005)
