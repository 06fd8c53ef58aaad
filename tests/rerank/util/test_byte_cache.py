"""Caches of functions that are bounded in bytes."""

from __future__ import annotations

import sys

import pytest

from rerank.prompting.segments import SegmentTokenizer, passage_contexts, segment_bytes
from rerank.util.byte_cache import cached_by_bytes
from tests.small_tokenizers import byte_level


def test_results_are_computed_once_until_the_bytes_are_exceeded() -> None:
    calls: list[str] = []
    double = cached_by_bytes(lambda text: calls.append(text) or text * 2, lambda result, text: len(text), max_bytes=10)
    for text in ("aaaa", "bbbb", "aaaa"):
        assert double(text) == text * 2
    assert calls == ["aaaa", "bbbb"]
    double("cccc")  # takes the place of "bbbb", which was not used for the longest time
    double("aaaa")
    assert calls == ["aaaa", "bbbb", "cccc"]
    double("bbbb")
    assert calls == ["aaaa", "bbbb", "cccc", "bbbb"]


def test_result_larger_than_the_cache_is_not_kept() -> None:
    calls: list[str] = []
    double = cached_by_bytes(lambda text: calls.append(text) or text, lambda result, text: len(text), max_bytes=10)
    double("a")
    for _ in range(2):
        assert double("x" * 11) == "x" * 11
    double("a")
    assert calls == ["a", "x" * 11, "x" * 11]


@pytest.mark.parametrize("text", ["x" * 100_000, "é日" * 20_000, "word " * 20_000], ids=["ascii", "wide", "words"])
def test_long_passages_do_not_fill_the_memory(text: str) -> None:
    """The estimate of a passage's bytes is not below what it takes, and the cache does not keep all of them."""
    segments = SegmentTokenizer(byte_level())
    (context,) = passage_contexts(["before ", " after"])
    ids = segments.tokenize_passage(text, context)
    assert ids is not None
    taken = sys.getsizeof(text) + sys.getsizeof(ids) + sum(map(sys.getsizeof, ids))
    assert taken <= segment_bytes(ids, text, context) * 1.01
    first = segments.tokenize_passage(text, context)
    assert first is segments.tokenize_passage(text, context)
    for number in range(32 * 1024 * 1024 // taken + 1):
        segments.tokenize_passage(f"{number}{text}", context)
    assert first is not segments.tokenize_passage(text, context)
