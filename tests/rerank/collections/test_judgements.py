"""Judgements by the text of their query."""

from rerank.collections.judgements import read_judgements
from tests.eval.data import judged_collection


def test_queries_that_differ_in_case_and_spaces_are_the_same(tmp_path):
    queries = {"1": "What is  a\u00a0Flea"}
    judgements = read_judgements(str(judged_collection(tmp_path, {"a": "t"}, queries, {"1": {"a": 2}})))
    assert judgements.grades_of(" what IS a flea ") == {"a": 2}
    assert judgements.queries == ("What is  a\u00a0Flea",)


def test_grades_below_0_count_as_0_and_unjudged_queries_are_left_out(tmp_path):
    grades = {"1": {"a": -2, "b": 1}, "3": {"c": 1}}
    judgements = read_judgements(str(judged_collection(tmp_path, {"a": "t"}, {"1": "one", "2": "two"}, grades)))
    assert judgements.grades_of("one") == {"a": 0, "b": 1}
    assert judgements.queries == ("one",)
    assert judgements.grades_of("two") == {}


def test_queries_in_either_normal_form_are_the_same(tmp_path):
    judged = judged_collection(tmp_path, {"a": "t"}, {"1": "cafe\u0301"}, {"1": {"a": 2}})
    assert read_judgements(str(judged)).grades_of("caf\u00e9") == {"a": 2}
