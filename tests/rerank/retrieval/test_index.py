"""Indexes: building, opening, and the refusal of indexes that do not fit."""

import json

import pytest
from rerank_eval.measures import measure, measures_from

from rerank.collections import open_collection
from rerank.errors import IndexMismatch
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index
from rerank.retrieval.index_format import FORMAT
from rerank.types import FirstStage, Query, ScoredDoc


@pytest.mark.parametrize("first_stage", FirstStage)
def test_every_first_stage_finds_the_passage(index, first_stage):
    found = index.search(first_stage, [Query("what causes the tides of the moon")], 5)[0]
    assert {hit.doc_id for hit in found[:2]} == {"moon", "tides"}
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


@pytest.mark.parametrize("first_stage", FirstStage)
def test_candidates_are_the_results_with_text_and_vector(index, first_stage):
    query = Query("what causes the tides of the moon")
    found = index.candidates(first_stage, query, 5)
    assert [ScoredDoc(c.doc_id, c.score or 0.0) for c in found] == index.search(first_stage, [query], 5)[0]
    stored = index.store.passages([candidate.doc_id for candidate in found])
    assert [(candidate.doc_id, candidate.text) for candidate in found] == [(p.doc_id, p.text) for p in stored]
    assert all(candidate.vector is not None for candidate in found)


OTHER = {"encoder": {"name": "other/encoder", "sha256": "0" * 64}}
PROMPTS = {"encoder": {"query_prompt": "q: ", "document_prompt": "d: "}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "rerank-index-1"}, rf"has format rerank-index-1, but this version reads {FORMAT}"),
        (OTHER, r"built with encoder other/encoder .*loaded one is encoder sentence-transformers/all-MiniLM-L6-v2"),
        (PROMPTS, r"query prompt 'q: ', document prompt 'd: '.*loaded one is .*query prompt '', document prompt ''"),
    ],
    ids=["format", "encoder", "prompts"],
)
def test_index_of_another_encoder_or_format_is_refused(index_folder, encoder, tmp_path, change, problem):
    manifest = json.loads((index_folder / "manifest.json").read_text(encoding="utf-8"))
    if "encoder" in change:
        change = {"encoder": manifest["encoder"] | change["encoder"]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | change), encoding="utf-8")
    with pytest.raises(IndexMismatch, match=problem):
        Index(tmp_path, encoder)


@pytest.mark.shared
@pytest.mark.timeout(600)
def test_cranfield_figures(shared, encoder, tmp_path):
    """nDCG@10 with title + text, k1 .9, b .4: BM25 .365, dense .400, RRF .431."""
    folder = shared / "cranfield"
    collection = open_collection(str(folder))
    build_index(collection, tmp_path / "cranfield", encoder)
    opened = Index(tmp_path / "cranfield", encoder)
    queries, qrels = collection.queries(), collection.qrels("test")
    found = {}
    for first_stage in (FirstStage.BM25, FirstStage.DENSE, FirstStage.HYBRID_RRF):
        runs = opened.search(first_stage, queries, 100)
        run = {query.query_id: hits for query, hits in zip(queries, runs, strict=True)}
        found[first_stage.value] = measure(measures_from(), qrels, run).mean["nDCG@10"]
    assert found == pytest.approx({"bm25": 0.365, "dense": 0.400, "hybrid-rrf": 0.431}, abs=0.005)
