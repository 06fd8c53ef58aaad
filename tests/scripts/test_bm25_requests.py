"""Request files that BM25 writes for questions, read again as `build-lists --requests` reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rerank.readers.requests import read_requests
from scripts.reproduce.bm25_requests import main

TEXTS = {"d1": "beech wood dries for two years", "d2": "oak wood dries for three years", "d3": "a lighthouse"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    corpus = [{"_id": doc_id, "title": "", "text": text} for doc_id, text in TEXTS.items()]
    questions = [
        {"_id": "d1", "question": "how long does beech wood dry", "answer": TEXTS["d1"]},
        {"_id": "d3", "question": "zeppelin", "answer": TEXTS["d3"]},
    ]
    for name, rows in (("corpus.jsonl", corpus), ("questions.jsonl", questions)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    main(folder, folder / "questions.jsonl", folder / "requests.jsonl", depth=2, passage_words=5)
    return folder


def test_candidates_are_those_of_bm25_best_first(folder: Path) -> None:
    first = read_requests(folder / "requests.jsonl")[0]
    assert first.query.text == "how long does beech wood dry"
    assert [candidate.doc_id for candidate in first.candidates] == ["d1", "d2"]
    scores = [candidate.score or 0.0 for candidate in first.candidates]
    assert scores[0] > scores[1] > 0
