"""Programs that call rerank endpoints: the request that each sends by its source, and what it reads from the reply.

programs.json has them. The texts are `NumberRanker`'s, whose order is 1, 2, 0; the rest of a request is as its
source has it. `reply` says where the program finds its results, and `reads` which other fields it expects.
"""

import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import NumberRanker
from tests.http_client import HttpClient
from tests.serving import HTTP, http_service

PROGRAMS = json.loads((Path(__file__).parent / "programs.json").read_text(encoding="utf-8"))
BEST_FIRST = [1, 2, 0]
TYPES: dict[str, type] = {"string": str, "integer": int}


@pytest.fixture(scope="module")
def service() -> Iterator[HttpClient]:
    """A service whose only model also answers to all other names."""
    with http_service({"number": NumberRanker()}, http=HTTP | {"model_aliases": {"*": "number"}}) as served:
        yield served.http


def field_at(reply: Any, path: str) -> Any:
    """The value at a path such as results.0.document.text; the reply itself at an empty one."""
    names = path.split(".") if path else []
    return reduce(lambda value, name: value[int(name)] if isinstance(value, list) else value[name], names, reply)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["program"])
def test_program_gets_the_reply_that_it_reads(service, program):
    expected = program["reply"]
    reply = service.post(program["path"], program["request"], authorization="Bearer unused")
    assert reply.status == 200, reply.body
    results = field_at(reply.json, expected["results"])
    indexes = [row[expected["index"]] for row in results] if expected["index"] else [*range(len(results))]
    scores = [row[expected["score"]] for row in results]
    assert len(results) == expected["count"]
    assert indexes == (BEST_FIRST[: len(results)] if expected["order"] == "best first" else [0, 1, 2])
    by_score = sorted(zip(scores, indexes, strict=True), reverse=True)
    assert [index for _, index in by_score] == BEST_FIRST[: len(results)]
    for path, kind in program["reads"].items():
        assert isinstance(field_at(reply.json, path), TYPES[kind]), path


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["program"])
def test_scores_have_a_decimal_point_and_unread_fields_are_told(service, program):
    """Programs with static types take no integer for a score."""
    reply = service.post(program["path"], program["request"])
    numbers = re.findall(rb'"(?:score|relevance_score|logit)":([^,}]+)', reply.body)
    assert len(numbers) == program["reply"]["count"]
    assert all(re.search(rb"[.e]", number) for number in numbers), numbers
    warnings = reply.headers.get("x-rerank-warnings", "")
    assert all(name in warnings for name in program["without_effect"])
    assert bool(warnings) == bool(program["without_effect"]), warnings


def test_weaviate_finds_the_service_ready(service):
    assert service.get("/.well-known/ready").status == 200
    assert isinstance(service.get("/meta").json, dict)
