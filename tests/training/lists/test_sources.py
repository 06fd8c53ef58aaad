"""Sources of queries and passages, and the query_ids that name them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from rerank_training.lists.sources import (
    pseudo_queries,
    read_medquad,
    request_collection,
    request_pools,
)

from rerank.errors import CollectionError
from rerank.readers.requests import Request
from rerank.types import CandidateSource, Passage, Query

LONG = Passage(
    "d1", "A flea lives for a whole year. Its eggs take ten days until they hatch in the carpet.", title="A flea"
)


def medquad_line(number: int, answer: str) -> str:
    return json.dumps({"_id": str(number), "question": f"question {number}?", "answer": answer, "focus": "x"}) + "\n"


def test_medquad_answers_are_relevant_to_their_questions(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl.gz"
    path.write_bytes(gzip.compress((medquad_line(1, "one two three") + medquad_line(2, "four")).encode()))
    queries, passages = read_medquad(path, "med", words=2)
    assert [(item.query.query_id, item.query.text, item.grades) for item in queries] == [
        ("med/1", "question 1?", {"1": 1.0}),
        ("med/2", "question 2?", {"2": 1.0}),
    ]
    assert passages == [Passage("1", "one two"), Passage("2", "four")]


@pytest.mark.parametrize("line", ["{", "[]", '{"_id": "1", "question": "q"}'])
def test_invalid_medquad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(medquad_line(1, "one") + line, encoding="utf-8")
    with pytest.raises(
        CollectionError, match=r"qa\.jsonl:2 (is not JSON|is \[\], which|has no answer; found _id, question)"
    ):
        read_medquad(path, "med", words=0)


def test_removed_query_is_no_longer_in_the_passage() -> None:
    (item,) = pseudo_queries([LONG], remove_share=1.0, seed=0, name="name")
    first, second = LONG.text.split(" Its ")
    assert item.query == Query(first, "name/d1/sentences-removed")
    assert item.replacement == Passage("d1", f"Its {second}")


def test_queries_are_removed_from_the_stated_share_of_passages() -> None:
    passages = [Passage(f"d{number}", f"{LONG.text} Deserts are dry and hot.") for number in range(400)]
    queries = pseudo_queries(passages, remove_share=0.25, seed=1, name="name")
    assert 70 <= sum(item.replacement is not None for item in queries) <= 130  # 100 ± 3.5 deviations


def test_request_pools_hold_the_first_non_empty_candidates() -> None:
    texts = {"a": "one two", "b": " ", "c": "three", "d": "four"}
    candidates = tuple(CandidateSource(doc_id, text, score=9.0) for doc_id, text in texts.items())
    requests = [Request(Query("q", "1"), candidates)]
    passages = request_collection(requests, words=1)
    assert passages == [Passage("a", "one"), Passage("c", "three"), Passage("d", "four")]
    (pool,) = request_pools(requests, passages, {"1": {"c": 2.0}}, depth=3, encode=None, name="name")
    assert [(c.passage.doc_id, c.score) for c in pool.candidates] == [("a", 9.0), ("c", 9.0)]
    assert (pool.query.query_id, pool.grades["c"]) == ("name/1", 2.0)
