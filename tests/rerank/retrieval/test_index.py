"""Indexes: building, opening, and the refusal of indexes that do not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rerank_eval.measures import BEIR, measure

from rerank.collections import beir, open_collection
from rerank.errors import IndexMismatch
from rerank.models.encoder import Encoder
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index, read_manifest
from rerank.retrieval.index_format import FORMAT
from rerank.types import FirstStage, Query, ScoredDoc
from tests.conftest import PASSAGES


@pytest.mark.parametrize("first_stage", FirstStage)
def test_every_first_stage_finds_the_passage(index: Index, first_stage: FirstStage) -> None:
    found = index.search(first_stage, [Query("what causes the tides of the moon")], 5)[0]
    assert {hit.doc_id for hit in found[:2]} == {"moon", "tides"}
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


def test_manifest_describes_the_index(index: Index, encoder: Encoder) -> None:
    manifest = index.manifest
    assert (manifest.format, manifest.collection, manifest.passages) == (FORMAT, "twelve", len(PASSAGES))
    assert (manifest.encoder, manifest.dense, manifest.bm25_k1, manifest.bm25_b) == (encoder.id, "flat", 0.9, 0.4)
    assert {"python", "rerank", "pyserini", "torch"} <= manifest.versions.keys()


def test_passage_text_is_title_and_text(index: Index) -> None:
    title, text = PASSAGES["moon"]
    assert index.store.passages(["moon"])[0].text == f"{title} {text}"


@pytest.mark.parametrize("first_stage", FirstStage)
def test_candidates_are_the_results_with_text_and_vector(index: Index, first_stage: FirstStage) -> None:
    query = Query("what causes the tides of the moon")
    found = index.candidates(first_stage, query, 5)
    assert [ScoredDoc(c.passage.doc_id, c.score or 0.0, c.bm25_score) for c in found] == index.search(
        first_stage, [query], 5
    )[0]
    stored = index.store.passages([candidate.passage.doc_id for candidate in found])
    assert [candidate.passage for candidate in found] == stored
    assert all(candidate.passage.vector is not None for candidate in found)


def test_nothing_found_gives_no_candidates(index: Index) -> None:
    assert index.candidates(FirstStage.BM25, Query("nothing-of-this"), 5) == ()


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
    (copy / "manifest.json").write_text(json.dumps(manifest | {"format": "rerank-index-1"}), encoding="utf-8")
    with pytest.raises(IndexMismatch, match=rf"has format rerank-index-1, but this version reads {FORMAT}"):
        Index(copy, encoder)


@pytest.mark.parametrize("content", ["", "[]", "{", f'{{"format": "{FORMAT}"}}', "[" * 5000, "1" * 5000])
def test_invalid_manifest_is_refused(content: str, encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(IndexMismatch, match=r"manifest\.json.*; build the index again$"):
        Index(tmp_path, encoder)


def test_folder_without_an_index_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(IndexMismatch, match=r"no index: it has no manifest\.json; build one with `rerank index"):
        Index(tmp_path, encoder)


@pytest.mark.shared
@pytest.mark.timeout(600)
def test_cranfield_figures(shared: Path, encoder: Encoder, tmp_path: Path) -> None:
    """nDCG@10 with title + text, k1 .9, b .4: BM25 .365, dense .400, RRF .431."""
    folder = shared / "cranfield"
    build_index(open_collection(str(folder)), tmp_path / "cranfield", encoder)
    opened, queries, qrels = Index(tmp_path / "cranfield", encoder), beir.queries(folder), beir.qrels(folder)
    found = {}
    for first_stage in (FirstStage.BM25, FirstStage.DENSE, FirstStage.HYBRID_RRF):
        runs = opened.search(first_stage, queries, 100)
        run = {query.query_id: hits for query, hits in zip(queries, runs, strict=True)}
        found[first_stage.value] = measure(BEIR, qrels, run).mean["nDCG@10"]
    assert found == pytest.approx({"bm25": 0.365, "dense": 0.400, "hybrid-rrf": 0.431}, abs=0.005)
