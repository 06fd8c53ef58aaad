"""Caches of functions that are bounded in bytes."""

from __future__ import annotations

from rerank.util.byte_cache import cached_by_bytes


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
