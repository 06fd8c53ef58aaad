"""Rows: ids and texts, and errors that say what a row lacks and what it has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rerank.readers.rows import (
    BadRow,
    id_of,
    json_object,
    optional_number_of,
    optional_text_of,
    text_of,
)


def message(read: Callable[..., object], *args: object) -> str:
    with pytest.raises(BadRow) as caught:
        read(*args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("oops", r"is not JSON (Expecting value: line 1 column 1 (char 0)); write one object per line; found 'oops'"),
        ("[1]", "is [1], which is not an object with named fields"),
        ("null", "is None, which is not an object with named fields"),
    ],
)
def test_line_that_is_not_an_object_is_described(line: str, expected: str) -> None:
    assert message(json_object, line) == expected


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": ' * 100_000, "9" * 5000, '{"a": 1' + "0" * 5000 + "}"])
def test_extreme_json_is_refused_briefly(line: str) -> None:
    assert message(json_object, line).startswith("is not JSON (")
    assert len(message(json_object, line)) < 250


def test_many_and_long_fields_are_cut() -> None:
    found = message(text_of, {f"{number}\x1b" * 100: 0 for number in range(100)}, "text")
    assert len(found) < 450
    assert found.isprintable()
    assert found.endswith(", …")


@pytest.mark.parametrize(
    ("value", "doc_id"), [("d 1.pdf", "d 1.pdf"), (7, "7"), (np.int64(7), "7"), (10**30, "1" + "0" * 30)]
)
def test_id_is_a_string_or_an_integer(value: object, doc_id: str) -> None:
    assert id_of({"_id": value}, ["_id"]) == doc_id


@pytest.mark.parametrize("value", [None, True, 1.0, ["d"], {}])
def test_id_of_another_type_is_refused(value: object) -> None:
    assert message(id_of, {"_id": value}, ["_id"]) == f"has {value!r} as _id; give a string or an integer"


def test_two_ids_must_be_equal() -> None:
    assert id_of({"_id": 7, "id": "7"}, ["_id", "id"]) == "7"
    expected = "has the different ids _id '7' and id '8'; give one of them"
    assert message(id_of, {"id": 8, "_id": 7}, ["_id", "id"]) == expected


def test_optional_fields_may_be_null() -> None:
    assert optional_text_of({"title": None}, "title") == optional_text_of({}, "title") == ""
    assert optional_number_of({"score": None}, "score") is None
    assert optional_number_of({"score": np.float32(0.5)}, "score") == 0.5


@pytest.mark.parametrize("value", ["1", True, [1.0], 10**400, float("nan"), np.float32("inf")])
def test_other_values_are_not_numbers(value: object) -> None:
    assert message(optional_number_of, {"score": value}, "score").endswith(
        ("; give a number", "; give a finite number")
    )


@pytest.mark.parametrize(
    ("value", "expected"), [(7, "has 7 as text; give a string"), ("a\ud800", "has half of a surr")]
)
def test_text_is_a_string_that_utf_8_can_hold(value: object, expected: str) -> None:
    assert message(text_of, {"text": value}, "text").startswith(expected)
