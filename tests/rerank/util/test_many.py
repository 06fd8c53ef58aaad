"""Many requests of one caller: as many at once as get through, order, bounds, and the progress bar."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from rerank.config import ServiceConfig
from rerank.config.named import config_of_model
from rerank.errors import InvalidRequest, Overloaded, UsageError
from rerank.types import Ranking, RankOptions
from rerank.util.many import MAX_AHEAD, ConcurrencyLimit, in_order


class Service:
    """Takes `room` requests at once, and refuses others."""

    def __init__(self, room: int) -> None:
        self.room, self.running, self.most, self.refused = room, 0, 0, 0

    async def answer(self) -> None:
        if self.running >= self.room:
            self.refused += 1
            raise Overloaded("full", 1.0)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1


@pytest.mark.parametrize("room", [1, 3, 20, 1000])
async def test_requests_of_a_batch_are_all_answered_and_use_the_room(room):
    service = Service(room)
    limit = ConcurrencyLimit(lambda error: isinstance(error, Overloaded))
    assert await asyncio.gather(*(limit.run(service.answer) for _ in range(300))) == [None] * 300
    assert service.most >= min(room, MAX_AHEAD // 2)
    assert service.refused <= 150


def started(item: int) -> Future[int]:
    future: Future[int] = Future()
    if item >= 0:
        future.set_result(item)
    return future


def test_results_are_in_order_and_a_bounded_number_is_read_ahead():
    read = list[int]()

    def items() -> Iterator[int]:
        for item in range(2 * MAX_AHEAD):
            read.append(item)
            yield item

    results = in_order(items(), started)
    assert [next(results), len(read)] == [0, MAX_AHEAD]
    assert [*results] == [*range(1, 2 * MAX_AHEAD)]
    assert [*in_order([], started)] == []


def test_closed_iterator_cancels_what_was_started():
    futures = [started(0), *(started(-1) for _ in range(MAX_AHEAD))]
    results = in_order(futures, lambda future: future)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert [future.cancelled() for future in futures] == [False, *[True] * (MAX_AHEAD - 1), False]


# --- Reranker.rerank_many ---


@pytest.fixture(scope="module")
def config() -> ServiceConfig:
    identity = config_of_model("identity")
    return identity.model_copy(update={"engine": identity.engine.model_copy(update={"max_queue_tokens": 50})})


def test_reranker_ranks_many_lists_and_yields_errors(config):
    """The queue holds a few of them at a time, and the others wait."""
    from rerank.reranking.blocking import Reranker

    with Reranker(config) as reranker:
        requests = [("q", ["a", "b", "c"]), (" ", ["a"])] * MAX_AHEAD
        answers = [*reranker.rerank_many(iter(requests), RankOptions(top_n=2))]
        assert [*reranker.rerank_many([])] == []
        with pytest.raises(TypeError, match=r"^'q' is not a pair \(query, candidates\)"):
            [*reranker.rerank_many(["q"])]  # type: ignore[list-item]
    assert len(answers) == 2 * MAX_AHEAD
    for ranking, error in zip(answers[::2], answers[1::2], strict=True):
        assert isinstance(ranking, Ranking)
        assert [item.position for item in ranking.ranked] == [0, 1]
        assert isinstance(error, InvalidRequest)
    with pytest.raises(UsageError, match="closed"):
        [*reranker.rerank_many([("q", ["a"])])]
