"""Translates pydantic's errors about a file of a user: the setting, what is expected, and what was given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rerank.names import did_you_mean

#: A file may be wrong in each of its lines; more problems are counted only.
_MAX_PROBLEMS = 10
_SHOWN_CHARS = 100

#: pydantic's type of an error → what the setting expects, with fields of the error's context.
_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number of at most {le}",
    "list_type": "a list, whose entries begin with a dash",
    "path_type": "a path",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "string_too_short": "a text of {min_length} or more characters",
    "string_type": "a text",
    "too_short": "a list of {min_length} or more entries",
    "tuple_type": "a list, whose entries begin with a dash",
}
_LIMITS = ("gt", "ge", "lt", "le")
_EXPECT_MAPPING = {"dict_type", "mapping_type", "model_attributes_type", "model_type"}


@dataclass(frozen=True)
class SettingProblem:
    """One thing that is wrong.

    Attributes:
        location: of the setting in the content of the file, such as ("models", 0, "path"), for its line.
        text: the path of the setting and what is wrong with it: "models[0].path: the setting is missing".
    """

    location: tuple[int | str, ...]
    text: str


def problems_of(error: ValidationError, expected: object, quote: bool = True) -> list[SettingProblem]:
    """All problems, in the order of pydantic.

    Args:
        expected: the model that was validated, or the annotation of a type adapter.
        quote: whether the texts may quote the given values; they name the kinds of secret ones only.
    """
    return [_problem(found, _models_in(expected), quote) for found in error.errors(include_url=False)]


def joined(problems: Sequence[SettingProblem], place_of: Callable[[tuple[int | str, ...]], str]) -> str:
    """The problems on one line, each behind its place in the file. Only the first ten of many are named."""
    named = "; ".join(f"{place_of(problem.location)}: {problem.text}" for problem in problems[:_MAX_PROBLEMS])
    more = len(problems) - _MAX_PROBLEMS
    return f"{named}; and {more} more" if more > 0 else named


def suggestion(given: object, choices: Iterable[str]) -> str:
    """The end of a message, with the choice that is written like what was given; empty if none is."""
    return f";{found}" if (found := did_you_mean(str(given), choices)) else ""


def _problem(error: ErrorDetails, models: list[type[BaseModel]], quote: bool) -> SettingProblem:
    """The problem of one of pydantic's errors, whose location also has the names of the choices of unions."""
    location: list[int | str] = []
    parent = models
    for part in error["loc"]:
        fields = [model.model_fields[part] for model in models if isinstance(part, str) and part in model.model_fields]
        chosen = [model for model in models if part in _tags(model)]
        if chosen and not fields and len(models) > 1:
            models = chosen
            continue
        location.append(part)
        if isinstance(part, str):
            parent, models = models, [model for field in fields for model in _models_in(field.annotation)]
    if error["type"] == "union_tag_invalid":
        location.append(error["ctx"]["discriminator"].strip("'"))
    text = _text(error, parent if error["type"] == "extra_forbidden" else models, quote)
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in location).removeprefix(".")
    return SettingProblem(tuple(location), f"{path}: {text}" if path else text)


def _text(error: ErrorDetails, models: list[type[BaseModel]], quote: bool) -> str:
    """Describes a problem. `models`: those that the setting may hold; for an unknown setting, those around it."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    names, tags = _common_fields(models), [tag for model in models for tag in _tags(model)]
    match kind:
        case "extra_forbidden":
            return f"unknown setting{suggestion(error['loc'][-1], names) or '; there are ' + ', '.join(names)}"
        case "missing":
            return "the setting is missing"
        case "union_tag_not_found":
            return f"{context['discriminator'].strip(chr(39))} is missing; it is one of {', '.join(tags)}"
        case "union_tag_invalid":
            given = context["tag"]
            return f"expected one of {', '.join(tags)}{_given(given, quote)}{suggestion(given, tags)}"
        case "value_error":
            scalar = not isinstance(given, Mapping | Sequence) or isinstance(given, str)
            return f"{error['msg'].removeprefix('Value error, ')}{_given(given, quote) if scalar else ''}"
        case "invalid_key":
            return f"the key{_given(given, quote).removeprefix(', given')} is not a text"
        case "enum" | "literal_error":
            choices = re.findall("'(.*?)'", context["expected"])
            return f"expected one of {', '.join(choices)}{_given(given, quote)}{suggestion(given, choices)}"
    if kind in _EXPECT_MAPPING:
        return f"expected a mapping with {', '.join(names) or 'names and values'}{_given(given, quote)}"
    if kind not in _EXPECTED:
        return f"{error['msg']}{_given(given, quote)}"
    limits = {name: int(limit) if limit == int(limit) else limit for name, limit in context.items() if name in _LIMITS}
    return f"expected {_EXPECTED[kind].format(**context | limits)}{_given(given, quote)}"


def _given(value: object, quote: bool) -> str:
    """Describes what was given, in the words of YAML; of a large value only its kind."""
    match value:
        case None:
            return ", given nothing"
        case bool():
            return f", given {str(value).lower()}"
        case Mapping():
            return ", given a mapping"
        case list() | tuple():
            return ", given a list"
        case str():
            return f", given the text {_shown(value)}" if quote else ", given a text"
    return f", given {_shown(value)}" if quote else f", given a {type(value).__name__}"


def _name(part: str) -> str:
    """The name of a setting; in quotes if it could break the line, and only its beginning if it is long."""
    return part if part.isprintable() and len(part) <= _SHOWN_CHARS else _shown(part)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def _common_fields(models: Sequence[type[BaseModel]]) -> list[str]:
    """The fields that all the models have, in the order of the first one."""
    return [name for name in (models[0].model_fields if models else ()) if all(name in m.model_fields for m in models)]


def _tags(model: type[BaseModel]) -> list[str]:
    """The names by which a union chooses this model: the value of its required field with one value only."""
    found = []
    for field in model.model_fields.values():
        values = get_args(field.annotation)
        if get_origin(field.annotation) is Literal and len(values) == 1 and field.is_required():
            found.append(values[0])
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a type mentions: of `tuple[A | B, ...] | None`, A and B."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
