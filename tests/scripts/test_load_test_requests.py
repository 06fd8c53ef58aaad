"""Requests of load tests: their sizes and seeds, and calls of a service with them."""

from __future__ import annotations

import random

import pytest

from rerank.access.credentials import PLAIN
from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.open_loop import Outcome
from scripts.load_test.requests import made_request, rerank_calls, words
from tests.fakes import NumberRanker
from tests.serving import TIMEOUT_S, held_service, numbered_candidates, reranker_of, serving


@pytest.mark.parametrize("characters", [0, 1, 7, 50_000])
def test_words_have_exactly_so_many_characters(characters: int) -> None:
    assert len(words(random.Random(0), characters)) == characters


def test_made_requests_are_the_same_for_the_same_seed() -> None:
    first, second = (made_request(random.Random(0), "m", 3, 50, top_n=2) for _ in range(2))
    assert first == second
    assert first != made_request(random.Random(1), "m", 3, 50, top_n=2)
    assert (first.model, first.top_n, [len(each.text) for each in first.candidates]) == ("m", 2, [50] * 3)


async def test_calls_send_the_requests_in_turn_and_report_statuses(encoder: Encoder) -> None:
    good, bad = pb.RerankRequest(query="q", candidates=numbered_candidates([1])), pb.RerankRequest(query="q")
    with serving(reranker_of(encoder, {"number": NumberRanker()})) as served:
        async with rerank_calls(served.address, PLAIN, [good, bad], TIMEOUT_S) as call:
            outcomes = [await call(number) for number in range(3)]
    assert outcomes == [Outcome("OK"), Outcome("INVALID_ARGUMENT"), Outcome("OK")]


async def test_refusals_and_deadlines_are_told_apart(encoder: Encoder) -> None:
    from rerank.config import Limits

    with held_service(encoder, limits=Limits(max_calls=1)) as held:
        running = held.start_call(candidates=numbered_candidates([1]))
        request = pb.RerankRequest(query="q", candidates=numbered_candidates([1]))
        async with rerank_calls(held.served.address, PLAIN, [request], TIMEOUT_S) as call:
            assert await call(0) == Outcome("RESOURCE_EXHAUSTED", has_retry_info=True)
        assert not running.done()
    with held_service(encoder) as held:
        async with rerank_calls(held.served.address, PLAIN, [request], 0.1) as call:
            assert await call(0) == Outcome("DEADLINE_EXCEEDED")
