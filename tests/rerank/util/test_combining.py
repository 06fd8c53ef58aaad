"""Runs of combining characters are bounded, so that texts are normalised in linear time."""

from __future__ import annotations

import pytest

from rerank.util.combining import stream_safe

JOINER = "\u034f"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("é" * 100, "é" * 100),
        ("a" + "\u0301" * 30 + "b", "a" + "\u0301" * 30 + "b"),
        ("a" + "\u0301" * 31, "a" + "\u0301" * 30 + JOINER + "\u0301"),
        ("\u0316\u0301" * 31, "\u0316\u0301" * 15 + JOINER + "\u0316\u0301" * 15 + JOINER + "\u0316\u0301"),
    ],
)
def test_runs_of_more_than_thirty_are_divided(text: str, expected: str) -> None:
    assert stream_safe(text) == expected
    assert stream_safe(expected) == expected
