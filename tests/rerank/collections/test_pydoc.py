"""The embedded collection and its own queries and judgements."""

from __future__ import annotations

import pytest

from rerank.collections import open_collection, pydoc
from rerank.commands.demo import qrels, queries
from rerank.retrieval.store import is_good_doc_id
from rerank.types import Passage


@pytest.fixture(scope="module")
def passages() -> dict[str, Passage]:
    return {passage.doc_id: passage for passage in pydoc.passages()}


def test_there_are_thousands_of_passages(passages: dict[str, Passage]) -> None:
    assert len(passages) > 3_000


def test_each_name_comes_once_and_makes_a_doc_id() -> None:
    doc_ids = [passage.doc_id for passage in pydoc.passages()]
    assert len(set(doc_ids)) == len(doc_ids)
    assert all(is_good_doc_id(doc_id) for doc_id in doc_ids)


def test_two_readings_are_equal(passages: dict[str, Passage]) -> None:
    assert list(pydoc.passages()) == list(passages.values())


@pytest.mark.parametrize(
    ("doc_id", "beginning"),
    [
        ("datetime.datetime.strptime", "method strptime of class datetime in module datetime\n"),
        ("itertools.chain", "class chain in module itertools\n"),
        ("os.path.join", "function join(a, *p) in module os.path\n"),
        ("json", "module json\n"),
        ("builtins.str.split", "method split(self, /, sep=None, maxsplit=-1) of class str in module builtins\n"),
        ("dict.fromkeys", None),
        ("this", None),
    ],
)
def test_heading_says_what_the_name_is(passages: dict[str, Passage], doc_id: str, beginning: str | None) -> None:
    if beginning is None:
        assert doc_id not in passages
    else:
        assert passages[doc_id].text.startswith(beginning)


def test_passages_have_passage_length(passages: dict[str, Passage]) -> None:
    assert all(len(p.text.partition("\n")[2].split()) <= 60 for p in passages.values())


def test_collection_is_named_after_its_interpreter() -> None:
    assert open_collection("pydoc").name.startswith("pydoc-3.")


def test_test_set_is_as_large_as_promised() -> None:
    assert len(queries()) >= 60
    assert sum(qrel.relevance > 0 for qrel in qrels()) >= 200
    assert {qrel.relevance for qrel in qrels()} == {0, 1, 2}


def test_every_query_has_an_answer() -> None:
    assert {qrel.query_id for qrel in qrels() if qrel.relevance == 2} == set(queries())


def test_every_judged_passage_exists(passages: dict[str, Passage]) -> None:
    assert {qrel.doc_id for qrel in qrels()} <= passages.keys()


def test_no_pair_is_judged_twice() -> None:
    pairs = [(qrel.query_id, qrel.doc_id) for qrel in qrels()]
    assert len(set(pairs)) == len(pairs)
