"""Reading and writing of training lists: every format, and the errors that name an invalid line."""

import logging
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.training_list import TrainingList, graded, read_lists, relevance_from_ranking, write_lists

from rerank.errors import CollectionError, ConfigError
from rerank.readers.qrels import read_qrels
from rerank.types import Passage, Query
from tests.eval.data import request_row, write, write_qrels
from tests.full_disk import largest_file

FLEA = {"doc_id": "flea", "text": "A flea lives a year."}
DESERT = {"doc_id": "desert", "text": "Deserts are dry."}
#: A row → its list.
Parse: TypeAlias = Callable[[object], TrainingList]
GOOD: dict[str, Any] = {"query_id": "7", "query": "flea life", "passages": [FLEA, DESERT], "relevance": [2, 0.5]}


@pytest.mark.parametrize("ranking", [[], [0, 0], [2], [-1]])
def test_ranking_that_repeats_or_exceeds_the_list_is_refused(ranking):
    with pytest.raises(CollectionError, match="each at most once"):
        relevance_from_ranking(ranking, 2)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (GOOD | {"passages": [FLEA], "relevance": [1]}, "1 passages; a list needs two or more"),
        (GOOD | {"passages": [FLEA, FLEA]}, "2 passages with 1 distinct doc_ids"),
        (GOOD | {"relevance": [1]}, "1 relevances for 2 passages"),
        (GOOD | {"relevance": [1, float("nan")]}, "relevance.1: .*finite"),
        (GOOD | {"relevance": [1, "2"]}, "relevance.1: expected a number"),
        (GOOD | {"query": " \n"}, "the query is empty"),
        (GOOD | {"passages": [FLEA, {"doc_id": "d", "text": " "}]}, "passage 'd' is empty"),
        (GOOD | {"passages": [FLEA, {"doc_id": "d", "text": "\ud800"}]}, "not valid Unicode"),
        ({key: value for key, value in GOOD.items() if key != "relevance"}, "relevance: is missing"),
    ],
)
def test_invalid_line_is_named_with_its_reason(tmp_path, row, reason):
    path = write(tmp_path / "lists.jsonl", GOOD, row)
    with pytest.raises(CollectionError, match=rf"1 of 2 lists are invalid \(50\.0%\).*lists\.jsonl:2: .*{reason}"):
        read_lists(path)


def test_invalid_lines_up_to_the_accepted_share_are_logged_and_skipped(tmp_path, caplog):
    path = write(tmp_path / "lists.jsonl", GOOD, {}, *[GOOD] * 98)
    with caplog.at_level(logging.WARNING):
        assert len(read_lists(path)) == 99
    assert "1 of 100 lists are invalid (1.0%) and skipped: lists.jsonl:2" in caplog.text
    reason = "query_id: is missing; query: is missing; passages: is missing; relevance: is missing"
    with pytest.raises(CollectionError, match=rf"many\.jsonl:1, .*jsonl:5, …: {reason}$"):  # once, not five times
        read_lists(write(tmp_path / "many.jsonl", *[{}] * 7))
    with pytest.raises(CollectionError, match="at most 1% are accepted"):
        read_lists(write(tmp_path / "short.jsonl", GOOD, {}, *[GOOD] * 97))


@pytest.mark.parametrize("text", ["", "\n", "[]"])
def test_empty_file_is_refused(tmp_path, text):
    path = tmp_path / "lists.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CollectionError, match=r"lists\.jsonl holds no lists"):
        read_lists(path)


# --- conversations


def prompt(*lines: str, end: str = "\nSearch Query: why so.\nRank the 2 passages above, e.g., [2] > [1].") -> str:
    return "\n".join(["Rank these based on their relevance to the search query: why so.", "", *lines, end])


def conversation(question: str, answer: str) -> dict[str, Any]:
    turns = [("system", "You rank."), ("human", question), ("gpt", answer)]
    return {"id": "rz-1", "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


def texts_of(item: TrainingList) -> dict[str, str]:
    return {passage.doc_id: passage.text for passage in item.passages}


@pytest.fixture
def parsed(tmp_path: Path) -> Parse:
    def parse(row: object) -> TrainingList:
        (item,) = read_lists(write(tmp_path / "lists.jsonl", row))
        return item

    return parse


def test_identifiers_of_conversations_are_numbers_or_letters(parsed):
    for first, second in ("12", "AB"):
        item = parsed(conversation(prompt(f"[{first}] one", f"[{second}] two"), f"[{second}] > [{first}]"))
        assert item == TrainingList(
            Query("why so", "rz-1"), (Passage(first, "one"), Passage(second, "two")), (1.0, 2.0)
        )


def test_messages_with_a_turn_for_each_passage(parsed):
    turns = [
        ("user", "I will show passages. Relevance to query: why so."), ("assistant", "Go on."),
        ("user", "[1] one"), ("assistant", "Received passage [1]."),
        ("user", "[2] two"), ("assistant", "Received passage [2]."),
        ("user", "Search Query: why so. \nRank the 2 passages above."), ("assistant", "[2] > [1]"),
    ]  # fmt: skip
    item = parsed({"messages": [{"role": role, "content": text} for role, text in turns]})
    assert item.query == Query("why so", "lists.jsonl:1")
    assert (texts_of(item), item.relevance) == ({"1": "one", "2": "two"}, (1.0, 2.0))


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("who? ", "who?"),
        ("who?.", "who?"),
        ("St. John's wort.", "St. John's wort"),
        ("a. Rank the 2", "a"),
        ("sort a list. Rank the methods. Rank the 2 passages above", "sort a list. Rank the methods"),
        ("one line\nand another.\nRank the 2 passages above. Only answer.", "one line and another"),
        ("no full stop \nRank the 2 passages above", "no full stop"),
    ],
)
def test_query_ends_before_the_instruction(parsed, written, query):
    item = parsed(conversation(prompt("[1] one", "[2] two", end=f"Search Query: {written}"), "[1] > [2]"))
    assert item.query.text == query


def test_numbered_lines_in_a_list_of_letters_are_text_and_the_reverse(parsed):
    letters = parsed(conversation(prompt("[A] steps:", "[1] stir", "[2] bake", "[B] two"), "[B] > [A]"))
    assert texts_of(letters) == {"A": "steps:\n[1] stir\n[2] bake", "B": "two"}
    numbers = parsed(conversation(prompt("[1] answers:", "[A] yes", "[2] two"), "[2] > [1]"))
    assert texts_of(numbers) == {"1": "answers:\n[A] yes", "2": "two"}


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        (prompt("[1] one", "[2] two"), "[1] > [1] > [2]", "the answer repeats 1 identifiers and names 0"),
        (prompt("[1] one", "[2] two"), "[1] > [2] > [9]", "the answer repeats 0 identifiers and names 1"),
        ("[1] one\n[2] two", "[1] > [2]", "no line that starts with 'Search Query:'"),
    ],
)
def test_conversation_that_cannot_be_read_is_refused(parsed, question, answer, reason):
    with pytest.raises(CollectionError, match=reason):
        parsed(conversation(question, answer))


# --- training data of PE-Rank and of E2Rank


def pe_rank_row(ranking: list[int], *texts: str, marks: int = 3, key: str = "messages_w_content") -> dict[str, Any]:
    lines = [f"Passage {place}: [<PLACEHOLDER>] {text}\n" for place, text in enumerate(["x"] * marks, start=1)]
    end = f"Search Query: why so.\nRank the {marks} relatively ordered passages above.\n"
    turn = {"role": "user", "content": "\n".join(["On the search query: why so.", *lines, end])}
    return {key: [turn], "extra_texts": [*texts], "ranking": ranking}


@pytest.mark.parametrize("key", ["messages_w_content", "messages_wo_content", "messages"])
@pytest.mark.parametrize("ranking", [[2, 0, 1], [3, 1, 2]])
@pytest.mark.parametrize("again", [(), ("c", "a", "b")])
def test_rows_of_pe_rank_have_their_texts_once_or_again_in_the_order_of_the_ranking(parsed, ranking, again, key):
    item = parsed(pe_rank_row(ranking, "a", "b", "c", *again, key=key))
    passages = tuple(Passage(str(place), text) for place, text in enumerate("abc", start=1))
    assert item == TrainingList(Query("why so", "lists.jsonl:1"), passages, (2.0, 1.0, 3.0))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (pe_rank_row([2, 0, 0], "a", "b", "c"), "ranking .2, 0, 0. does not name each of 3 passages once"),
        (pe_rank_row([2, 4, 3], "a", "b", "c"), "does not name each of 3 passages once, from 0 or from 1"),
        (pe_rank_row([2, 0, 1], "a", "b"), "2 extra_texts for a ranking of 3; give 3 of them, or the same 3 again"),
        (pe_rank_row([2, 0, 1], "a", "b", "c", "a", "b", "c"), "6 extra_texts for a ranking of 3"),
        (pe_rank_row([2, 0, 1], "a", "b", "c", marks=2), "the prompt has 2 <PLACEHOLDER>, and the ranking 3 passages"),
        ({"extra_texts": ["a", "b"], "ranking": [0, 1]}, "the prompt has 0 <PLACEHOLDER>"),
        ({"extra_texts": ["a"], "messages": []}, "train on it by train-pe-rank --objective align"),
        ({"query": "q", "document": ["a", "b"], "ranking": [0, 1]}, "ranking .0, 1., which counts from 1"),
    ],
)
def test_row_of_other_passages_than_its_ranking_is_refused(parsed, row, reason):
    with pytest.raises(CollectionError, match=reason):
        parsed(row)


def test_rows_of_e2rank_count_from_1_and_their_instructions_are_said_to_be_one(parsed, caplog):
    row = {"query": "q", "document": ["a", "b", "c"], "ranking": [3, 1, 2], "source": "nq"}
    assert parsed(row) == TrainingList(
        Query("q", "lists.jsonl:1"), tuple(Passage(str(n), text) for n, text in enumerate("abc", 1)), (2.0, 1.0, 3.0)
    )
    assert "names 1 sources (nq), to which E2Rank's code gives instructions of their own" in caplog.text


# --- requests


FLEA_LIFE = request_row("7", {"a": "A flea.", "b": "Deserts.", "c": "The moon."}, "flea life")


def test_requests_get_the_grades_of_their_qrels_and_0_when_unjudged_or_below_0(tmp_path):
    requests = write(tmp_path / "requests.jsonl", FLEA_LIFE)
    grades = {"7": {"c": 3, "b": -2, "a": 1, "not-retrieved": 2}, "8": {"b": 1}}
    qrels = write_qrels(tmp_path / "qrels.txt", grades)
    (item,) = read_lists(requests, read_qrels(qrels))
    assert (item.query, item.relevance) == (Query("flea life", "7"), (1.0, 0.0, 3.0))
    assert [passage.doc_id for passage in item.passages] == ["a", "b", "c"]


def test_judged_ids_have_the_form_of_the_requests(tmp_path):
    """With white space between the columns, %20 is a space, unless the ids of the requests hold the code."""
    row = request_row("my%20q", {"a": "A flea.", "https://x.example/a%20flea": "Deserts.", "c": "The moon."})
    (tmp_path / "qrels.txt").write_text("my%20q 0 https://x.example/a%20flea 2\n", encoding="utf-8")
    (item,) = read_lists(write(tmp_path / "requests.jsonl", row), read_qrels(tmp_path / "qrels.txt"))
    assert item.relevance == (0.0, 2.0, 0.0)


def test_lists_without_unequal_relevance_are_left_out_with_their_number(caplog):
    passages = Passage("a", "A flea."), Passage("b", "Deserts.")
    same, unequal = (TrainingList(Query("flea"), passages, relevance) for relevance in ((1.0, 1.0), (-1.0, 0.0)))
    assert graded([same, unequal, same], "lists.jsonl") == [unequal]
    assert "lists.jsonl: 2 of 3 lists are left out: all passages equally relevant" in caplog.text
    with pytest.raises(CollectionError, match=r"in none of the 2 lists of lists\.jsonl is a passage more relevant"):
        graded([same, same], "lists.jsonl")


@pytest.mark.parametrize(("third", "scores"), [(-2.5, (9.0, 8.0, -2.5)), (None, ())])
def test_requests_keep_the_scores_if_all_candidates_have_one(tmp_path, third, scores):
    row = deepcopy(FLEA_LIFE)
    row["candidates"][2]["score"] = third
    qrels = read_qrels(write_qrels(tmp_path / "qrels.txt", {"7": {"c": 3}}))
    (item,) = read_lists(write(tmp_path / "requests.jsonl", row), qrels)
    assert item.scores == scores
    assert item.select([2, 0]).scores == tuple(scores[place] for place in (2, 0) if scores)


def test_request_without_judgements_is_invalid(tmp_path):
    requests = write(tmp_path / "requests.jsonl", FLEA_LIFE)
    qrels = read_qrels(write_qrels(tmp_path / "qrels.txt", {"8": {"a": 1}}))
    with pytest.raises(CollectionError, match="no judgement for query '7'"):
        read_lists(requests, qrels)
    with pytest.raises(CollectionError, match="give its judgements with --qrels"):
        read_lists(requests)


TEXTS = st.text(min_size=1).filter(str.strip)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def training_lists(draw: st.DrawFn) -> TrainingList:
    doc_ids = draw(st.lists(st.text(), min_size=2, max_size=4, unique=True))
    relevance = draw(st.lists(NUMBERS, min_size=len(doc_ids), max_size=len(doc_ids)))
    scores = draw(st.lists(NUMBERS, min_size=len(doc_ids), max_size=len(doc_ids)) | st.just([]))
    passages = tuple(Passage(doc_id, draw(TEXTS)) for doc_id in doc_ids)
    query = Query(draw(TEXTS), draw(st.text()), draw(st.text()))
    return TrainingList(query, passages, tuple(relevance), tuple(scores))


@given(lists=st.lists(training_lists(), min_size=1, max_size=3))
def test_written_lists_are_read_back(tmp_path_factory, lists):
    path = tmp_path_factory.mktemp("lists") / "lists.jsonl"
    assert write_lists(path, lists) == len(lists)
    assert list(read_lists(path)) == lists


def test_lists_for_which_there_is_no_space_leave_the_file_as_it_was(tmp_path):
    path = tmp_path / "lists.jsonl"
    passages = (Passage("a", "text " * 200), Passage("b", "other"))
    item = TrainingList(Query("q", query_id="1"), passages, (1.0, 0.0))
    write_lists(path, [item])
    before = path.read_bytes()
    way_out = "free disk space and give the same command again"
    with largest_file(3000), pytest.raises(ConfigError, match=rf"lists\.jsonl cannot be written: .*; {way_out}$"):
        write_lists(path, [item] * 10)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
