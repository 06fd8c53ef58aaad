"""Many requests of one caller: room beside one another, order, bounds, and the progress bar."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rerank.config import ServiceConfig
from rerank.config.named import config_of_model
from rerank.errors import InvalidRequest, Overloaded, UsageError
from rerank.types import Ranking, RankOptions
from rerank.util.many import IN_WORK, Pace, in_order, with_bar


def full() -> Overloaded:
    return Overloaded("full", 1.0)


def test_refused_request_is_started_again_when_another_one_has_ended() -> None:
    async def run() -> list[str]:
        pace, events, first_may_end = Pace(), list[str](), asyncio.Event()

        async def first() -> str:
            await first_may_end.wait()
            events.append("first ends")
            return "first"

        async def second() -> str:
            events.append("second is tried")
            if not first_may_end.is_set():
                raise full()
            return "second"

        running = [asyncio.create_task(pace.run(first))]
        await asyncio.sleep(0)
        running.append(asyncio.create_task(pace.run(second)))
        await asyncio.sleep(0)
        first_may_end.set()
        assert await asyncio.gather(*running) == ["first", "second"]
        return events

    assert asyncio.run(run()) == ["second is tried", "first ends", "second is tried"]


def test_requests_that_never_find_room_are_all_refused() -> None:
    async def refused() -> None:
        await asyncio.sleep(0)
        raise full()

    async def run() -> list[Any]:
        pace = Pace()
        return await asyncio.gather(*(pace.run(refused) for _ in range(20)), return_exceptions=True)

    assert all(isinstance(each, Overloaded) for each in asyncio.run(run()))


def test_deadline_ends_the_wait_for_room() -> None:
    async def run() -> int:
        pace, tries = Pace(), 0
        other = asyncio.create_task(pace.run(asyncio.Event().wait))
        await asyncio.sleep(0)

        async def second() -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise full()

        now_s = asyncio.get_running_loop().time()
        await pace.run(second, now_s)
        other.cancel()
        return tries

    assert asyncio.run(run()) == 2


def started(item: int) -> Future[int]:
    future: Future[int] = Future()
    if item >= 0:
        future.set_result(item)
    return future


def test_results_are_in_order_and_their_weights_bound_what_is_started() -> None:
    read = list[int]()

    def items() -> Iterator[int]:
        for item in range(20):
            read.append(item)
            yield item

    results = in_order(items(), started, lambda item: 1 / 4)
    assert [next(results), len(read)] == [0, 4]
    assert [*results] == [*range(1, 20)]
    assert [*in_order([], started)] == []


def test_closed_iterator_cancels_what_was_started() -> None:
    futures = [started(0), started(-1), started(-1)]
    results = in_order(futures, lambda future: future, lambda future: 1 / 3)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert [future.cancelled() for future in futures] == [False, True, True]


def test_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert [*with_bar(iter("ab"), "ab", show=True)] == ["a", "b"]
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    assert [*with_bar(iter("ab"), "ab", show=False)] == ["a", "b"]
    assert capsys.readouterr().err == ""
    assert [*with_bar(iter("ab"), "ab", show=True)] == ["a", "b"]
    assert "requests" in capsys.readouterr().err


# --- Reranker.rerank_many ---


@pytest.fixture(scope="module")
def config() -> ServiceConfig:
    identity = config_of_model("identity")
    return identity.model_copy(update={"engine": identity.engine.model_copy(update={"max_queue_tokens": 50})})


def test_reranker_ranks_many_lists_and_yields_errors(config: ServiceConfig) -> None:
    """The queue holds a few of them at a time, for which the others wait."""
    from rerank.reranking.blocking import Reranker

    with Reranker(config) as reranker:
        requests = [("q", ["a", "b", "c"]), (" ", ["a"])] * IN_WORK
        answers = [*reranker.rerank_many(iter(requests), RankOptions(top_n=2))]
        assert [*reranker.rerank_many([])] == []
        with pytest.raises(TypeError, match=r"^'q' is no pair \(query, candidates\)"):
            [*reranker.rerank_many(["q"])]  # type: ignore[list-item]
    assert len(answers) == 2 * IN_WORK
    for ranking, error in zip(answers[::2], answers[1::2], strict=True):
        assert isinstance(ranking, Ranking)
        assert [item.position for item in ranking.ranked] == [0, 1]
        assert isinstance(error, InvalidRequest)
    with pytest.raises(UsageError, match="closed"):
        [*reranker.rerank_many([("q", ["a"])])]
