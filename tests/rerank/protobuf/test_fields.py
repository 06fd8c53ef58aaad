"""Fields of requests: the names of the command line become protobuf's values, and a wrong field is named."""

import pytest

from rerank.errors import InvalidRequest
from rerank.names import FeedbackMethod
from rerank.protobuf.fields import (
    COMPLETENESS,
    FEEDBACK_METHODS,
    FIRST_STAGE_KINDS,
    FIRST_STAGES,
    ON_FAILURE,
    SCORE_KINDS,
    STRATEGIES,
    request_message,
    unread_candidate_fields,
    with_enum_values,
)
from rerank.v1 import rerank_pb2 as pb


@pytest.mark.parametrize("method", FeedbackMethod)
def test_feedback_is_its_method_or_a_message_with_it(method):
    number = pb.FeedbackMethod.Value(f"FEEDBACK_METHOD_{method.name}")
    for given in (method.value, {"method": method.value, "steps": 3}):
        assert request_message(pb.SearchRequest, {"feedback": given}).feedback.method == number


@pytest.mark.parametrize(
    ("fields", "field", "expected"),
    [
        ({"top_k": 1}, "top_k", r"no such field; did you mean top_n\? fields: query, first_stage, depth"),
        ({"strategy": "slidng"}, "strategy.kind", r"did you mean sliding\? choices: single"),
        ({"strategy": {"windowsize": 2}}, "strategy.windowsize", r"did you mean window_size\?"),
        ({"first_stage_weight": {"weight": 2}}, "first_stage_weight.weight", "fields: kind, number"),
        ({"feedback": "rochio"}, "feedback.method", r"did you mean rocchio\?"),
        ({"top_n": "3"}, "top_n", "'3' is not a value of this field"),
        ({"top_n": 2**40}, "top_n", "is not a value of this field .*out of range"),
        ({"top_n": 1, "topN": 2}, "topN", "top_n is given twice"),
        ({"model": "x" * 10**6, "depth": "x" * 10**6}, "depth", r"'x+\.\.\.x+' is not a value of this field"),
    ],
)
def test_wrong_field_or_value_is_named(fields, field, expected):
    with pytest.raises(InvalidRequest, match=expected) as caught:
        request_message(pb.SearchRequest, fields)
    assert caught.value.field == field
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["t", {"id": "a", "doc_id": "b"}], "candidates[1].doc_id: doc_id is given twice; leave one out"),
        ([7], "candidates[0]: 7 is not a candidate; send an object with doc_id and text, or a text"),
        ({"a": "t"}, "candidates: {'a': 't'} is not a list; send a list of candidates"),
    ],
)
def test_wrong_candidates_are_named_by_their_place(given, message):
    with pytest.raises(InvalidRequest) as caught:
        request_message(pb.RerankRequest, {"candidates": given})
    assert str(caught.value).startswith(message)


def test_further_fields_of_a_candidate_are_ignored_as_in_files_and_in_python():
    found = with_enum_values(pb.RerankRequest, {"candidates": [{"text": "t", "price": 1}]})
    assert found == {"candidates": [{"text": "t", "doc_id": "0"}]}


def test_ignored_fields_of_candidates_are_named_once():
    candidates = [{"text": "t", "titel": 1}, "plain", {"docid": "d", "docId": "d", "titel": 2, "price": 1}]
    assert unread_candidate_fields(pb.RerankRequest, {"candidates": candidates}) == ["titel", "price"]
    assert unread_candidate_fields(pb.SearchRequest, {"query": "q"}) == []


def test_argument_of_the_client_is_sent_to_its_constructor():
    with pytest.raises(InvalidRequest, match=r"^attempts: .* give it to the client: RerankClient\(…, attempts=…\)"):
        request_message(pb.RerankRequest, {"query": "q", "attempts": 1})


@pytest.mark.parametrize(
    ("members", "of_proto"),
    [
        (STRATEGIES, pb.StrategyKind),
        (FIRST_STAGES, pb.FirstStage),
        (FIRST_STAGE_KINDS, pb.FirstStageKind),
        (FEEDBACK_METHODS, pb.FeedbackMethod),
        (ON_FAILURE, pb.OnFailure),
        (SCORE_KINDS, pb.ScoreKind),
        (COMPLETENESS, pb.Completeness),
    ],
)
def test_members_and_values_correspond_by_their_names(members, of_proto):
    kind = type(next(iter(members)))
    assert set(members) == set(kind)
    by_name = {of_proto.Name(value): member.name for member, value in members.items()}
    unspecified, *others = of_proto.keys()
    assert unspecified.endswith("_UNSPECIFIED")
    prefix = unspecified.removesuffix("UNSPECIFIED")
    assert by_name == {name: name.removeprefix(prefix) for name in others}
