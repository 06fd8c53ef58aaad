"""Pools of requests and of a collection: their candidates, scores, grades and ids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rerank_training.lists.sampling import Pool
from rerank_training.lists.settings import BuildListsSettings, TeacherName
from rerank_training.lists.sources import open_source

from rerank.models.encoder import Encoder


def pools(encoder: Encoder | None, folder: Path, **settings: object) -> list[Pool]:
    common = {"out": folder / "out.jsonl", "teacher": TeacherName.QRELS, "passages": "2", "name": "n"}
    source = open_source(BuildListsSettings(**(common | settings)), encoder)  # type: ignore[arg-type]
    found = list(source.pools)
    assert len(found) == source.queries
    return found


def test_pool_of_a_request_holds_its_first_candidates_that_have_a_text(encoder: Encoder, tmp_path: Path) -> None:
    texts = {"a": "one two", "b": " ", "c": "three", "d": "four"}
    candidates = [{"docid": doc_id, "score": 9.0, "doc": {"contents": text}} for doc_id, text in texts.items()]
    row = {"query": {"qid": "1", "text": "q"}, "candidates": candidates}
    requests, qrels = tmp_path / "requests.jsonl", tmp_path / "qrels.txt"
    requests.write_text(json.dumps(row), encoding="utf-8")
    qrels.write_text("1 0 c 2\n", encoding="utf-8")
    for given in (None, encoder):
        (pool,) = pools(given, tmp_path, requests=requests, qrels=qrels, depth=3)
        assert [(c.doc_id, c.score) for c in pool.candidates] == [("a", 9.0), ("c", 9.0)]
        assert (pool.query.query_id, pool.grades["c"]) == ("n/1", 2.0)
        assert all((c.vector is None) == (given is None) for c in pool.candidates)


def test_pool_of_a_collection_holds_the_highest_cosines_and_the_relevant_passages(
    encoder: Encoder, beir_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").symlink_to(beir_folder / "corpus.jsonl")
    rows = ({"_id": number, "text": "pull of the moon"} for number in ("1", "2"))
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "qrels" / "test.tsv").write_text("q\td\ts\n1\tviolin\t1\n1\tgone\t1\n", encoding="utf-8")
    (whole,) = pools(encoder, tmp_path, collection=str(tmp_path), split="test", depth=50)
    cosines = [candidate.score or 0.0 for candidate in whole.candidates]
    assert cosines == sorted(cosines, reverse=True)
    vectors = np.stack([c.vector for c in whole.candidates if c.vector is not None])
    np.testing.assert_allclose(vectors @ encoder.encode_queries(["pull of the moon"])[0], cosines, atol=1e-6)
    (short,) = pools(encoder, tmp_path, collection=str(tmp_path), split="test", depth=2)
    nearest = [candidate.doc_id for candidate in whole.candidates[:2]]
    assert [candidate.doc_id for candidate in short.candidates] == [*nearest, "violin"]
