"""No message of pydantic speaks of Python to a person."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rerank.util.validation import plain_words


class Model(BaseModel):
    number: int


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Model, 5, "expected an object with named fields"),
        (Model, {}, "is missing"),
        (dict[str, int], 5, "expected an object with named fields"),
        (Mapping[str, int], 5, "expected an object with named fields"),
        (tuple[int, ...], 5, "expected a list"),
        (list[int], {}, "expected a list"),
        (Sequence[int], 5, "expected a list"),
        (int, "x", "expected a whole number"),
        (int, 1.5, "expected a whole number"),
        (float, "x", "expected a number"),
        (bool, "x", "expected true or false"),
        (str, 5, "expected a text"),
        (Path, 5, "expected the path of a file or folder"),
        (Literal["a", "b"], "c", "should be 'a' or 'b'"),
        (Annotated[int, Field(gt=0)], 0, "should be greater than 0"),
        (Annotated[float, Field(allow_inf_nan=False)], float("nan"), "should be a finite number"),
        (Annotated[str, Field(pattern="^a$")], "b", "should have the form ^a$"),
        (Annotated[str, Field(min_length=1)], "", "should have at least 1 character"),
        (Annotated[list[int], Field(min_length=1)], [], "should have at least 1 item"),
    ],
)
def test_message_is_in_plain_words(kind, value, words):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    assert plain_words(refused.value.errors()[0]["msg"]) == words
