"""The calls of a key: its streams wait for their turn, its other calls are refused only among themselves."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from rerank.access.callers import Caller, CallerLimits, Place
from rerank.errors import Overloaded


def caller(max_calls: int | None) -> Caller:
    return Caller("a", CallerLimits(max_calls=max_calls))


def taken(places: list[Place]) -> list[bool]:
    return [place.is_taken.is_set() for place in places]


def test_calls_of_no_stream_are_refused_above_the_limit() -> None:
    key = caller(2)
    first, second = key.enter(), key.enter()
    assert taken([first, second]) == [True, True]
    with pytest.raises(Overloaded, match="2 calls of key a are in flight, the most that it may have"):
        key.enter()
    first.leave()
    assert key.enter().is_taken.is_set()


def test_requests_of_a_stream_wait_and_leave_a_turn_to_other_calls() -> None:
    key = caller(2)
    streamed = [key.enter("stream") for _ in range(4)]
    assert taken(streamed) == [True, True, False, False]
    call = key.enter()
    assert not call.is_taken.is_set()
    streamed[0].leave()
    assert call.is_taken.is_set(), "the stream has another one in flight"
    streamed[1].leave()
    assert taken(streamed[2:]) == [True, False]
    call.leave()
    assert taken(streamed[2:]) == [True, True]


@pytest.mark.parametrize("max_calls", [1, 2, 3, 4, 7])
def test_streams_and_other_calls_that_always_wait_have_equal_shares(max_calls: int) -> None:
    key, turns = caller(max_calls), Counter[str | None]()
    kinds: list[str | None] = ["one", "other", None]
    waiting = [key.enter(kind) for _ in range(max_calls) for kind in kinds]
    running = deque[Place]()
    for _ in range(300):
        running += [place for place in waiting if place.is_taken.is_set()]
        waiting = [place for place in waiting if not place.is_taken.is_set()]
        assert len(running) == max_calls
        ended = running.popleft()
        ended.leave()
        turns[ended.stream] += 1  # type: ignore[index]
        waiting.append(key.enter(ended.stream))
    assert max(turns.values()) - min(turns.values()) <= max_calls


def test_place_that_was_not_taken_is_given_up() -> None:
    key = caller(1)
    first, second, third = (key.enter("stream") for _ in range(3))
    second.leave()
    first.leave()
    assert third.is_taken.is_set()


def test_raised_limit_counts_from_the_next_call_on() -> None:
    key = caller(1)
    streamed = [key.enter("stream") for _ in range(3)]
    key.limits = CallerLimits(max_calls=3)
    key.enter()
    assert taken(streamed) == [True, True, False], "the call of its own has the third place"
