"""Accounts: who gives way where there is no room, and who is refused."""

import asyncio

import pytest

from rerank.config import EngineConfig
from rerank.engine.accounts import Accounts, CallUsage, Shared
from rerank.errors import Overloaded
from tests.rerank.engine.harness import Blocks, held_engine, request_for, shuffled, wait_for_queue

CALLS, BYTES, TOKENS = Shared.CALLS, Shared.BYTES, Shared.TOKENS


class Callers:
    """Accounts of callers, and the calls that have given way so far."""

    def __init__(self, kind: Shared, limit: int) -> None:
        self.accounts, self._kind = Accounts({kind: limit}), kind
        self.ended: list[CallUsage] = []

    def take(self, name: str, amount: int = 1, is_idle: bool = False) -> CallUsage:
        usage = CallUsage(name, is_idle=is_idle)
        usage.give_way = lambda: self.ended.append(usage)
        self.accounts.acquire(usage, self._kind, amount)
        return usage


@pytest.fixture
def callers() -> Callers:
    return Callers(CALLS, 4)


def test_caller_alone_may_have_all(callers):
    for _ in range(4):
        callers.take("a")
    with pytest.raises(Overloaded, match="4 calls in flight, 4 of them yours; 1 more exceed the limit of 4; retry"):
        callers.take("a")
    assert callers.ended == []


def test_latest_call_of_the_caller_with_the_most_gives_way(callers):
    calls = [callers.take(name) for name in "abaa"]
    callers.take("c")
    assert callers.ended == [calls[3]]
    assert isinstance(calls[3].ended_by, Overloaded)
    assert calls[3].ended_by.metadata == {"exceeded": "max_calls", "limit": "4", "held": "4"}
    with pytest.raises(Overloaded, match="4 calls in flight, 1 of them yours"):
        callers.take("c")


def test_callers_that_ask_for_ever_have_equal_shares(callers):
    for _ in range(20):
        for name in "abcd":
            try:
                callers.take(name)
            except Overloaded:
                continue
    assert [callers.accounts.held_by(name, CALLS) for name in "abcd"] == [1] * 4


def test_idle_calls_give_way_before_one_that_is_answered(callers):
    """The caller with the most is answered; another one does not read its answers."""
    for _ in range(2):
        callers.take("busy")
    first = callers.take("idle", is_idle=True)
    callers.take("idle", is_idle=True)
    callers.take("new")
    assert callers.ended == [first]


def test_of_callers_with_a_call_each_the_idle_one_gives_way(callers):
    calls = [callers.take(name, is_idle=name == "c") for name in "abcd"]
    callers.take("new")
    assert callers.ended == [calls[2]]
    with pytest.raises(Overloaded, match="4 calls in flight, 0 of them yours"):
        callers.take("newest")


def test_nobody_gives_way_to_what_finds_no_room_all_the_same():
    callers = Callers(BYTES, 100)
    callers.take("large", 40)
    callers.take("large", 30)
    callers.take("small", 30)
    with pytest.raises(Overloaded, match="100 bytes in flight, 0 of them yours; 75 more exceed the limit of 100"):
        callers.take("new", 75)
    assert callers.ended == []
    callers.take("new", 39)
    assert [call.name for call in callers.ended] == ["large", "large"]


def test_callers_give_way_in_turns_when_more_than_one_call_has_to():
    callers = Callers(BYTES, 100)
    for name, amount in (("a", 30), ("a", 30), ("b", 40)):
        callers.take(name, amount)
    callers.take("new", 35)
    assert [call.name for call in callers.ended] == ["a", "b"]


def test_request_larger_than_the_limit_runs_alone_and_gives_way_to_any_other():
    callers = Callers(TOKENS, 1000)
    large = callers.take("large", 7000)
    callers.take("small", 10)
    assert callers.ended == [large]
    with pytest.raises(Overloaded, match="10 tokens queued, 0 of them yours; 7000 more exceed the limit of 1000"):
        callers.take("large", 7000)


def test_caller_does_not_give_way_to_itself(callers):
    """Its unread answers would end its connection, with the call that asks."""
    for _ in range(4):
        callers.take("a", is_idle=True)
    with pytest.raises(Overloaded, match="4 of them yours"):
        callers.take("a")
    assert callers.ended == []


def test_few_calls_end_at_the_same_time():
    """A client that does not read delays the end of its calls, which cost memory until then."""
    callers = Callers(CALLS, 300)
    calls = [callers.take("a") for _ in range(300)]
    for number in range(100):
        callers.take(str(number))
    with pytest.raises(Overloaded):
        callers.take("new")
    assert callers.ended == calls[:199:-1]
    callers.accounts.leave(calls[-1])
    callers.take("new")


def test_quota_of_a_key_bounds_its_calls_together_but_one_alone(callers):
    usage = CallUsage("key", quotas={TOKENS: 100})
    callers.accounts.limits[TOKENS] = 1000
    callers.accounts.check_quota(usage, TOKENS, 500)
    callers.accounts.acquire(usage, TOKENS, 60)
    callers.accounts.check_quota(usage, TOKENS, 40)
    with pytest.raises(Overloaded, match="key key has 60 tokens queued; 41 more exceed its limit of 100"):
        callers.accounts.check_quota(usage, TOKENS, 41)
    callers.accounts.leave(usage)
    callers.accounts.check_quota(usage, TOKENS, 500)


def test_what_left_counts_no_more_and_leaves_nothing_behind(callers):
    for _ in range(3):
        call = callers.take("a", 4)
        callers.accounts.leave(call)
        callers.accounts.leave(call)
    assert callers.accounts.held_by("a", CALLS) == 0
    assert callers.accounts._accounts == {}


async def test_tokens_of_a_request_count_while_it_runs():
    async with held_engine(EngineConfig(max_batch_tokens=1)) as (engine, _):
        request = request_for(shuffled(100), Blocks(100))
        request.usage.name = "caller"
        running = asyncio.create_task(engine.run(request))
        await wait_for_queue(engine, 1)
        assert engine.accounts.held_by("caller", TOKENS) > 0
    await running
    assert engine.accounts.held_by("caller", TOKENS) == 0
