"""Candidate lists: texts as RankLLM prepares them."""

import pytest
from rerank_eval.candidate_lists import with_repaired_texts

from rerank.readers.requests import Request
from rerank.types import CandidateSource, Query

pytest.importorskip("ftfy")


def test_texts_are_repaired_and_cut_and_nothing_else_changes() -> None:
    candidates = (CandidateSource("a", text=" donâ€™t\n go ", score=2.0), CandidateSource("b", text="word " * 400))
    repaired = with_repaired_texts(Request(Query("donâ€™t"), candidates))
    assert repaired.query == Query("donâ€™t")
    assert repaired.candidates[0] == CandidateSource("a", text="don't go", score=2.0)
    assert repaired.candidates[1].text == " ".join(["word"] * 300)
