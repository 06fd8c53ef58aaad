"""The calls of a key: those above its limit are refused."""

from __future__ import annotations

import pytest

from rerank.access.callers import Caller, CallerLimits
from rerank.errors import Overloaded


def test_calls_above_the_limit_of_a_key_are_refused_until_one_ends() -> None:
    key = Caller("a", CallerLimits(max_calls=2))
    key.enter()
    key.enter()
    with pytest.raises(Overloaded, match="2 calls of key a are in flight, the most that it may have"):
        key.enter()
    key.leave()
    key.enter()
    key.follow(CallerLimits(max_calls=3))
    key.enter()
