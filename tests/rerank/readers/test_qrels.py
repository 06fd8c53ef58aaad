"""Judgements in the forms of TREC and BEIR, recognised by their content."""

from collections.abc import Set
from pathlib import Path

import pytest

from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel, known_ids, read_qrels, with_known_ids

HEADER = "query-id\tcorpus-id\tscore\n"


def read(folder: Path, text: str) -> list[Qrel]:
    path = folder / "qrels.txt"
    path.write_text(text, encoding="utf-8")
    return read_qrels(path)


@pytest.mark.parametrize(
    "text",
    [
        "1 0 a 2\n1 Q0 b -1\n",
        "1\t0\ta\t2\n1\tQ0\tb\t-1\n",
        "  1   0\ta 2\r\n\r\n1 0 b -1",
        f"{HEADER}1\ta\t2\n1\tb\t-1\n",
        "q\td\ts\n1\ta\t2\n1\tb\t-1\n",
        "1\ta\t2\n1\tb\t-1\n",
        "1\ta\t2\t\n1\tb\t-1\n",
        "1\t0\ta\t2\t\t\n1\tQ0\tb\t-1\t\n",
        "query_id\tdoc_id\trelevance (0-2)\n1\ta\t2\n1\tb\t-1\n",
        "query-id\tcorpus-id\trel-score\t\n1\ta\t2\n1\tb\t-1\n",
        "query-id\titer\tcorpus-id\tscore\n1\t0\ta\t2\n1\tQ0\tb\t-1\n",
        "topic iteration docno relevance\n1 0 a 2\n1 Q0 b -1\n",
        f"\ufeff{HEADER}1\ta\t2.0\r\n1\tb\t-1.0\r\n",
    ],
)
def test_both_forms_are_recognised_and_grades_begin_at_0(tmp_path, text):
    assert read(tmp_path, text) == [Qrel("1", "a", 2), Qrel("1", "b", 0)]


def test_white_space_of_ids_is_decoded_between_spaces_and_stays_between_tabs(tmp_path):
    assert read(tmp_path, "q%201 0 HELP%201 2\n") == [Qrel("q 1", "HELP 1", 2)]
    assert read(tmp_path, "q\t0\tHELP%201\t2\n") == [Qrel("q", "HELP%201", 2)]


def test_judged_ids_get_the_form_that_exists_and_a_known_id_means_itself():
    qrels = [Qrel("q 1", "a b", 2), Qrel("q%202", "c%20d", 1), Qrel("plain", "e%20f", 1), Qrel("plain", "%2F", 1)]
    known = {"q%201", "q 2", "plain"}, {"a%20b", "c d", "e f", "e%20f", "/"}
    found = with_known_ids(qrels, lambda ids: known[0] & ids, lambda ids: known[1] & ids)
    in_the_form_that_exists = [Qrel("q%201", "a%20b", 2), Qrel("q 2", "c d", 1)]
    assert found == [*in_the_form_that_exists, *qrels[2:]]


@pytest.mark.parametrize("known", [["e%20f", "e f"], ["e f", "e%20f"]])
def test_two_known_ids_that_differ_in_their_encoding_mean_themselves(known):
    assert known_ids(known, known) == {"e f": "e f", "e%20f": "e%20f"}


def test_nothing_is_looked_up_where_no_id_has_white_space():
    def find(ids: Set[str]) -> list[str]:
        raise AssertionError(ids)

    assert with_known_ids([Qrel("q", "a%2Fb", 2)], find, find) == [Qrel("q", "a%2Fb", 2)]


@pytest.mark.parametrize("text", ["1 0 a 2\n\n1 0 b 1\n1 0 a 0\n", f"{HEADER}1\ta\t2\n\n1\ta\t0\n"])
def test_contradicting_judgements_are_refused_with_both_lines(tmp_path, text):
    with pytest.raises(CollectionError, match=r"qrels\.txt:4 has the judgement .* '1' 'a' of line [12], with"):
        read(tmp_path, text)
