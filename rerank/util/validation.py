"""Pydantic's errors on one line in plain words: the line of a file, the path of the setting, what is expected."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rerank.names import did_you_mean

#: Where a setting is in the content of a file, such as ("models", 0, "path").
Location: TypeAlias = tuple[int | str, ...]

#: The first problems are quoted and the others counted, because a file can be wrong in each of its lines.
_MAX_PROBLEMS = 10
#: Longer names of settings are cut.
_SHOWN_CHARS = 100
#: Message of pydantic, with names of Python's types → the same in plain words.
_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in {
        r"^Value error, ": "",
        r"^Input should be a valid (dictionary|mapping).*": "expected an object with named fields",
        r"^Input should be a valid (list|tuple|set|frozenset).*": "expected a list",
        r"^Input should be an instance of (Sequence|list|tuple)$": "expected a list",
        r"^Input should be a valid integer.*": "expected a whole number",
        r"^Input should be a valid number.*": "expected a number",
        r"^Input should be a valid boolean.*": "expected true or false",
        r"^Input should be a valid string.*": "expected a text",
        r"^Input is not a valid path.*": "expected the path of a file or folder",
        r"^Input should be ": "should be ",
        r"^String should match pattern '(.*)'$": r"should have the form \1",
        r"^(\w+) should have (at (?:least|most) \d+ \w+) after validation, not.*": r"should have \2",
        r"^String should have ": "should have ",
        r"^Field required$": "is missing",
        r"^Invalid JSON: ": "this is not JSON: ",
    }.items()
]


def plain_words(message: str) -> str:
    """A message of pydantic, without names of Python's types."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message


def problems_of(
    error: ValidationError, given: object, expected: object, place_of: Callable[[Location], str], quote: bool = True
) -> str:
    """The problems on one line, each after its place in the file. At most ten are quoted; the others are counted.

    Args:
        given: the content that was validated.
        expected: the pydantic model, or the type of a type adapter.
        place_of: returns the file and line of a setting.
        quote: whether the message may quote given values; False if they can be secret.
    """
    found = error.errors(include_url=False)
    named = []
    for problem in found[:_MAX_PROBLEMS]:
        location = tuple(_location(problem, given))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in location)
        named.append(
            ": ".join(filter(None, (place_of(location), path.removeprefix("."), _text(problem, expected, quote))))
        )
    more = len(found) - len(named)
    return "; ".join(dict.fromkeys(named)) + (f"; and {more} more" if more else "")


def suggestion(given: object, choices: Iterable[str]) -> str:
    """The end of a message: the choice whose spelling is like that of the given name; empty if there is none."""
    return f";{found}" if (found := did_you_mean(str(given), choices)) else ""


def _location(problem: ErrorDetails, given: Any) -> Iterator[int | str]:
    """The place of a problem in the file, without the names that pydantic adds for the types of a union."""
    for part in problem["loc"]:
        is_there = (
            part in given if isinstance(given, Mapping) else isinstance(part, int) and isinstance(given, Sequence)
        )
        if is_there or (problem["type"] == "missing" and part == problem["loc"][-1]):
            yield part
            given = given[part] if is_there else None


def _text(problem: ErrorDetails, expected: object, quote: bool) -> str:
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown setting{suggestion(problem['loc'][-1], _fields_of(expected)) or '; leave it out'}"
        case "missing":
            return "the setting is missing"
        case "union_tag_not_found":
            name = problem["ctx"]["discriminator"].strip("'")
            keys = problem["input"] if isinstance(problem["input"], Mapping) else ()
            misspelled = next((key for key in keys if suggestion(key, [name])), None)
            hint = f", and {_name(str(misspelled))} is an unknown setting{suggestion(misspelled, [name])}"
            return f"{name} is missing{'' if misspelled is None else hint}"
        case "union_tag_invalid":
            context = problem["ctx"]
            choices = context["expected_tags"].replace("'", "")
            given = suggestion(context["tag"], choices.split(", "))
            return f"{context['discriminator'].strip(chr(39))} should be one of {choices}{given}"
    text = plain_words(problem["msg"])
    given = problem["input"]
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        return f"{text}, given {reprlib.repr(given)}" if quote else text
    return text if problem["type"] == "value_error" else f"{text}, given a {type(given).__name__}"


def _name(part: str) -> str:
    """The name of a setting; quoted if it has control characters or more than 100 characters, and then cut."""
    return part if part.isprintable() and len(part) <= _SHOWN_CHARS else reprlib.repr(part)


def _fields_of(annotation: Any) -> set[str]:
    """The names of the fields of all pydantic models in a type, also nested ones."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        return {*fields, *(name for field in fields.values() for name in _fields_of(field.annotation))}
    return {name for part in get_args(annotation) for name in _fields_of(part)}
