"""Runs of combining characters are bounded, so that texts are normalised in linear time."""

import time
import unicodedata

import pytest

from rerank.util.combining import nfc, stream_safe

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
def test_runs_of_more_than_thirty_are_divided(text, expected):
    assert stream_safe(text) == expected
    assert stream_safe(expected) == expected


def test_letter_and_accent_become_one_character_and_other_texts_stay_the_same_object():
    assert nfc("cafe\u0301 \u1100\u1161") == "caf\u00e9 \uac00"
    assert nfc("\ufb01ance\u0301") == "\ufb01anc\u00e9"  # the ligature stays, which NFKC would divide
    for text in ("plain", "caf\u00e9", "\u86a4", "\ufb01\uff21"):  # a ligature and a wide letter are not NFC's business
        assert nfc(text) is text


def test_long_runs_of_accents_are_normalised_at_once():
    text = "a" + "\u0301\u0327" * 50_000
    started = time.perf_counter()
    assert unicodedata.is_normalized("NFC", nfc(text))
    assert time.perf_counter() - started < 5
