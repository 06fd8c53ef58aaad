"""Requests as they come in messages of protobuf: checks with their errors, cleaning and defaults."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from rerank.config import Limits
from rerank.errors import InvalidRequest
from rerank.names import DEFAULT_FIRST_STAGE
from rerank.protobuf import messages
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import FeedbackMethod, FeedbackSettings, Passage, Query, RankOptions
from rerank.v1 import rerank_pb2 as pb

LIMITS = Limits(max_candidates=3, max_query_chars=10, max_passage_chars=20)
TWICE = r"'a' is also the doc_id of candidates\[0\]; send each doc_id once"
UNKNOWN = 99  # the enums of proto3 are open, so that any number can arrive


def candidate(doc_id: str = "d0", text: str | None = "text", in_index: bool = False) -> pb.Candidate:
    return pb.Candidate(doc_id=doc_id, text=text, in_index=in_index)


def rerank_request(
    candidates: Sequence[pb.Candidate] = (candidate(),), query: str = "query", **fields: object
) -> pb.RerankRequest:
    return pb.RerankRequest(query=query, candidates=candidates, **fields)


def search_request(query: str = "query", **fields: object) -> pb.SearchRequest:
    return pb.SearchRequest(query=query, **fields)


def feedback_request(**fields: object) -> pb.SearchRequest:
    return search_request(feedback=pb.Feedback(**fields))


def weighted_request(**fields: object) -> pb.SearchRequest:
    return search_request(first_stage_weight=pb.FirstStageWeight(**fields))


def scored(score: float) -> pb.Candidate:
    return pb.Candidate(doc_id="a", text="a", first_stage_score=score)


def checked(message: pb.RerankRequest | pb.SearchRequest, limits: Limits = LIMITS) -> Any:
    if isinstance(message, pb.RerankRequest):
        return messages.rerank_request(message).checked(limits)
    return messages.search_request(message).checked(limits)


def test_defaults():
    query, options = Query("query"), RankOptions()
    assert checked(rerank_request()) == RerankRequest(query, (Passage("d0", "text"),), options)
    assert checked(search_request(), Limits()) == SearchRequest(query, options, DEFAULT_FIRST_STAGE, 100, None)
    assert checked(search_request()).depth == 3, "no more than the limit"


@pytest.mark.parametrize("request_of", [rerank_request, search_request])
def test_options_are_converted(request_of):
    strategy = pb.Strategy(kind=pb.STRATEGY_KIND_SLIDING, window_size=6, stride=3)
    found = checked(request_of(model="m", top_n=2, strategy=strategy, instruction="please", allow_partial=True), LIMITS)
    assert found.query == Query("query", instruction="please")
    assert found.options == RankOptions("m", top_n=2, strategy="sliding", window_size=6, stride=3, allow_partial=True)


@pytest.mark.parametrize(
    ("request_", "field", "value", "limit"),
    [
        (rerank_request(query="x" * 11), "query", 11, 10),
        (rerank_request(instruction="x" * 11), "instruction", 11, 10),
        (rerank_request([candidate(f"d{n}") for n in range(4)]), "candidates", 4, 3),
        (rerank_request([candidate(), candidate("d1", "x" * 21)]), "candidates[1].text", 21, 20),
        (search_request(depth=4), "depth", 4, 3),
    ],
)
def test_exceeded_limit_is_refused_with_value_and_limit(request_, field, value, limit):
    with pytest.raises(
        InvalidRequest, match=rf"{value} \w+ exceed the limit of {limit}; send at most {limit}"
    ) as caught:
        checked(request_)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert caught.value.metadata == {"value": str(value), "limit": str(limit)}


@pytest.mark.parametrize(
    ("request_", "field", "message"),
    [
        (rerank_request(query=""), "query", "the query is empty"),
        (rerank_request(query="\x00\x1f\x7f"), "query", "the query is empty"),
        (rerank_request([]), "candidates", "the list is empty; send at least one candidate"),
        (rerank_request([candidate("a"), candidate("b"), candidate("a")]), "candidates[2].doc_id", TWICE),
        (rerank_request([candidate("")]), "candidates[0].doc_id", "'' is blank or contains tabs, line ends or other"),
        (rerank_request([candidate("a\tb")]), "candidates[0].doc_id", r"'a\\tb' is blank or contains tabs"),
        (rerank_request([candidate("a", None)]), "candidates[0].text", "neither text nor in_index is set"),
        *(
            (
                rerank_request([scored(score)]),
                "candidates[0].first_stage_score",
                f"{score} is not a finite number; send",
            )
            for score in (math.inf, -math.inf, math.nan)
        ),
        (rerank_request(top_n=-1), "top_n", "-1 is negative; use 0 or more"),
        (rerank_request(strategy=pb.Strategy(kind=UNKNOWN)), "strategy.kind", r"99 is not a value .* \[0, 1, "),
        *(
            (weighted_request(number=weight), "first_stage_weight", f"{weight} is not between 0 and 100")
            for weight in (-0.1, 100.5, math.inf, math.nan)
        ),
        (feedback_request(top_k=1), "feedback.top_k", "1 is not between 2 and 200; use a value in this range"),
        (feedback_request(steps=201), "feedback.steps", "201 is not between 0 and 200"),
        (feedback_request(min_cosine=1.0), "feedback.min_cosine", "1.0 is not between 0 and 0.999"),
    ],
)
def test_invalid_field_is_refused_by_name(request_, field, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        checked(request_)
    assert caught.value.field == field


def test_feedback_has_defaults_and_keeps_what_the_request_sets():
    assert checked(feedback_request()).feedback == FeedbackSettings()
    request = feedback_request(method=pb.FEEDBACK_METHOD_ROCCHIO, top_k=2, steps=200, learning_rate=1.0, min_cosine=0.0)
    assert checked(request).feedback == FeedbackSettings(FeedbackMethod.ROCCHIO, 2, 200, 1.0, 0.0)


def test_control_characters_become_spaces_except_tabs_and_line_ends():
    sent = [candidate(text="\x00one\x1f\ttwo\r\nthree\x7f")]
    found = checked(rerank_request(sent, query="\x07 a\x00b ", instruction="\x0bc"))
    assert found.candidates[0].text == " one \ttwo\r\nthree "
    assert found.query == Query("  a b ", instruction="c")  # published models read white space at its ends


def test_chunks_of_all_candidates_together_are_bounded():
    """Fewer candidates than the limit, whose chunks may be more."""
    two = [candidate("a"), candidate("b")]
    message = "2 candidates with up to 2 chunks each are 4 passages, more than the limit of 3; use none"
    with pytest.raises(InvalidRequest, match=message):
        checked(rerank_request(two, max_chunks_per_doc=2))
    assert checked(rerank_request(two[:1], max_chunks_per_doc=3)).options.max_chunks_per_doc == 3
