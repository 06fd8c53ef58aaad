"""The real engine over fakes: what a job gets does not depend on who else is there, and failures stay where they are.

With `ONE_BY_ONE` every window is a batch. A HeldRanker keeps the model's thread busy, so that what comes then waits.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.job import Job
from rerank.engine.strategies import Cascade, Cost, Round, Schedule, Single, Sliding, Strategy, reordered, spans
from rerank.engine.throughput import Lane, Stage
from rerank.errors import DeadlineExceeded, InvalidRequest, Overloaded, RankerFailure, ShuttingDown
from rerank.rankers.identity import IdentityRanker
from rerank.types import Candidate, Completeness, Passage, Prepared, Query, Ranking, Window, WindowRanking
from tests.fakes import BrokenRanker, HeldRanker, NumberRanker, numbered_passages, walked

ROOMY = EngineConfig(max_batch_tokens=4096)
ONE_BY_ONE = EngineConfig(max_batch_tokens=1)
SLIDING = Sliding(20, 10)


@dataclass(frozen=True)
class Blocks:
    """One round of windows side by side, each ordered in itself."""

    window_size: int
    name: ClassVar[str] = "blocks"

    def schedule(self, n: int) -> Schedule:
        blocks = [tuple(range(start, min(start + self.window_size, n))) for start in range(0, n, self.window_size)]
        rankings = yield Round(tuple(blocks))
        return [
            position for block, ranking in zip(blocks, rankings, strict=True) for position in reordered(block, ranking)
        ]

    def cost(self, n: int) -> Cost:
        return Cost.exactly(-(-n // self.window_size), min(n, 1))

    def __str__(self) -> str:
        return f"blocks({self.window_size})"


class WatchedRanker(NumberRanker):
    """Remembers which threads called each of its methods, and how often it prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[str, set[int]] = {"prepare": set(), "tokens": set(), "rank": set()}
        self.prepared = 0

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        self.threads["prepare"].add(threading.get_ident())
        self.prepared += 1
        return Prepared(query, tuple(passages), truncated_doc_ids=("d2", "d0"))

    def tokens(self, window: Window) -> int:
        self.threads["tokens"].add(threading.get_ident())
        return super().tokens(window)

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        self.threads["rank"].add(threading.get_ident())
        return super().rank(windows)


class HeldBrokenRanker(BrokenRanker, HeldRanker):
    """Breaks over poison; holds everything else."""


class SmallRanker(HeldRanker):
    """Its memory holds so many windows at once."""

    def __init__(self, most_windows: int) -> None:
        super().__init__()
        self._most_windows = most_windows
        self.tried: list[int] = []

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        self.tried.append(len(windows))
        if len(windows) > self._most_windows:
            raise MemoryError("tried to allocate 2.00 GiB")
        return super().rank(windows)


class ChoosyRanker(NumberRanker):
    """Refuses a query in which "unreadable" is written."""

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        if "unreadable" in query.text:
            raise InvalidRequest("query", "9 tokens, at most 8 are read")
        return super().prepare(query, passages)


def shuffled(n: int, seed: int = 0) -> list[float]:
    return [float(number) for number in random.Random(seed).sample(range(n), k=n)]


def job_for(
    numbers: Sequence[float],
    strategy: Strategy = SLIDING,
    query: str = "q",
    model: str = "number",
    deadline: float | None = None,
    allow_partial: bool = False,
) -> Job:
    candidates = tuple(Candidate(passage) for passage in numbered_passages(numbers))
    return Job(model, Query(query), candidates, strategy, top_n=0, deadline=deadline, allow_partial=allow_partial)


def poisoned(query: str = "poisoned") -> Job:
    """A job over which BrokenRanker breaks."""
    candidates = (Candidate(Passage("d0", "poison")), Candidate(Passage("d1", "relevance 1")))
    return Job("number", Query(query), candidates, Single(2), top_n=0)


def engine_over(ranker: NumberRanker, config: EngineConfig = ROOMY) -> Engine:
    return Engine({"number": ranker}, config)


def positions(ranking: Ranking) -> list[int]:
    return [row.position for row in ranking.ranked]


def best_first(numbers: Sequence[float]) -> list[int]:
    return sorted(range(len(numbers)), key=lambda position: -numbers[position])


def queries(ranker: NumberRanker) -> list[str]:
    """The query of each window that ran."""
    return [window.query.text for window in ranker.ranked]


async def held_at(ranker: HeldRanker) -> None:
    """Returns once the ranker waits in a batch."""
    assert await asyncio.to_thread(ranker.entered.wait, 60), "no batch came"


async def waiting(engine: Engine, windows: int) -> None:
    """Returns once so many windows wait for a batch."""
    async with asyncio.timeout(60):
        while engine.waiting_windows != windows:  # noqa: ASYNC110  (the engine has no event for it)
            await asyncio.sleep(0.001)


def at_rate(engine: Engine, tokens_per_s: float) -> Engine:
    """The engine, as if it had measured this rate."""
    lane = Lane(Stage.RANK, "number")
    for _ in range(2):  # the first one does not count
        engine.throughput.observe(lane, tokens_per_s, 1.0, asyncio.get_running_loop().time())
    return engine


def in_s(seconds: float) -> float:
    """A deadline."""
    return asyncio.get_running_loop().time() + seconds


def start(*work: Coroutine[Any, Any, Ranking]) -> list[asyncio.Task[Ranking]]:
    return [asyncio.create_task(one) for one in work]


@pytest.mark.parametrize("strategy", [SLIDING, Sliding(5, 2), Single(20), Blocks(7)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 7, 19, 20, 21, 30, 57, 100])
async def test_result_is_the_strategys_walked_by_hand(strategy: Strategy, n: int) -> None:
    numbers = shuffled(n)
    windows, order = walked(strategy, lambda window: [numbers[position] for position in window], n)
    async with engine_over(NumberRanker()) as engine:
        ranking = await engine.run(job_for(numbers, strategy))
    assert positions(ranking) == order
    assert [window.positions for window in ranking.trace.windows] == windows
    assert [window.tokens for window in ranking.trace.windows] == [10 * len(window) for window in windows]
    assert ranking.trace.rounds == (1 if isinstance(strategy, Blocks) else len(windows))


@pytest.mark.parametrize("strategy", [SLIDING, Single(20)], ids=str)
async def test_no_candidates_no_windows(strategy: Strategy) -> None:
    ranker = NumberRanker()
    async with engine_over(ranker) as engine:
        ranking = await engine.run(job_for([], strategy))
    assert (ranking.ranked, ranking.trace.windows, ranking.trace.rounds) == ((), (), 0)
    assert ranking.trace.completeness is Completeness.FULL
    assert ranker.ranked == []


@pytest.mark.parametrize("config", [ROOMY, ONE_BY_ONE, EngineConfig(max_batch_tokens=500)], ids=str)
async def test_jobs_at_once_get_the_orders_that_they_get_alone(config: EngineConfig) -> None:
    strategies: list[Strategy] = [SLIDING, Sliding(5, 2), Single(20), Blocks(7)]
    jobs = [job_for(shuffled(7 * seed, seed), strategies[seed % 4]) for seed in range(1, 25)]
    async with engine_over(NumberRanker(), config) as engine:
        together = await asyncio.gather(*(engine.run(job) for job in jobs))
        alone = [await engine.run(job) for job in jobs]
    assert [ranking.ranked for ranking in together] == [ranking.ranked for ranking in alone]
    assert [ranking.trace.windows for ranking in together] == [ranking.trace.windows for ranking in alone]


async def test_windows_of_several_jobs_share_a_batch() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker) as engine:
        first = start(engine.run(job_for(shuffled(5), Single(5))))
        await held_at(ranker)
        others = start(*(engine.run(job_for(shuffled(5), Single(5))) for _ in range(23)))
        await waiting(engine, 23)
        ranker.release.set()
        await asyncio.gather(*first, *others)
    assert ranker.batches == [1, 23]


@pytest.mark.parametrize(("budget", "widest"), [(1, 1), (200, 1), (399, 1), (400, 2), (1000, 5)])
async def test_batches_keep_to_the_budget(budget: int, widest: int) -> None:
    ranker = NumberRanker()
    async with engine_over(ranker, EngineConfig(max_batch_tokens=budget)) as engine:
        await engine.run(job_for(shuffled(200), Blocks(20)))
    assert max(ranker.batches) == widest
    assert sum(ranker.batches) == 10


async def test_models_never_share_a_batch() -> None:
    numbers = shuffled(40)
    ranker, other = NumberRanker(), NumberRanker()
    async with Engine({"number": ranker, "other": other, "identity": IdentityRanker()}, ROOMY) as engine:
        names = ["number", "identity", "other"] * 4
        rankings = await asyncio.gather(*(engine.run(job_for(numbers, query=name, model=name)) for name in names))
    for name, ranking in zip(names, rankings, strict=True):
        assert positions(ranking)[:10] == (list(range(10)) if name == "identity" else best_first(numbers)[:10])
        assert ranking.trace.model == name
    assert {*queries(ranker)} == {"number"}
    assert {*queries(other)} == {"other"}


async def test_cascade_runs_on_two_models_that_prepare_once_each() -> None:
    numbers = shuffled(50)
    cheap, dear = WatchedRanker(), WatchedRanker()
    async with Engine({"number": dear, "cheap": cheap}, ROOMY) as engine:
        ranking = await engine.run(job_for(numbers, Cascade(10, "cheap", SLIDING)))
    assert positions(ranking)[:10] == best_first(numbers)[:10]
    assert [len(window.passages) for window in cheap.ranked] == [20] * 4
    assert [len(window.passages) for window in dear.ranked] == [10]
    assert (cheap.prepared, dear.prepared) == (1, 1)


async def test_each_method_of_a_ranker_has_a_thread_that_is_not_the_loops() -> None:
    ranker = WatchedRanker()
    async with engine_over(ranker) as engine:
        await asyncio.gather(*(engine.run(job_for(shuffled(50))) for _ in range(8)))
    assert [len(threads) for threads in ranker.threads.values()] == [1, 1, 1]
    assert len(set[int]().union({threading.get_ident()}, *ranker.threads.values())) == 4


async def test_requests_are_prepared_while_a_batch_runs() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker) as engine:
        first = start(engine.run(job_for([1, 2])))
        await held_at(ranker)
        others = start(*(engine.run(job_for([1, 2])) for _ in range(3)))
        await waiting(engine, 3)
        ranker.release.set()
        await asyncio.gather(*first, *others)


async def test_passages_that_the_ranker_cuts_are_named() -> None:
    async with engine_over(WatchedRanker()) as engine:
        ranking = await engine.run(job_for(shuffled(5)))
    assert ranking.trace.truncated_doc_ids == ("d2", "d0")


async def test_query_that_the_ranker_refuses_fails_alone() -> None:
    ranker = ChoosyRanker()
    async with engine_over(ranker) as engine:
        refused, ranked = start(*(engine.run(job_for([1, 2], query=text)) for text in ("unreadable", "q")))
        with pytest.raises(InvalidRequest, match="query: 9 tokens, at most 8 are read"):
            await refused
        assert positions(await ranked) == [1, 0]
    assert queries(ranker) == ["q"]


async def test_cancelled_jobs_waiting_windows_never_reach_the_ranker() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker, ONE_BY_ONE) as engine:
        first, cancelled, last = start(*(engine.run(job_for([1, 2], query=name)) for name in ("first", "gone", "last")))
        await held_at(ranker)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        ranker.release.set()
        await asyncio.gather(first, last)
    assert queries(ranker) == ["first", "last"]


async def test_cancelled_job_takes_the_rest_of_its_round_with_it() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker, ONE_BY_ONE) as engine:
        (cancelled,) = start(engine.run(job_for(shuffled(50), Blocks(10), query="gone")))
        await held_at(ranker)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        ranker.release.set()
        await engine.run(job_for([1, 2], query="after"))
    assert queries(ranker) == ["gone", "after"], "the running window ends, the others never begin"


@pytest.mark.parametrize("windows_done", [0, 2])
async def test_deadline_ends_a_job_and_its_next_window_never_runs(windows_done: int) -> None:
    ranker = HeldRanker(free_batches=windows_done)
    async with engine_over(ranker) as engine:
        deadline = asyncio.get_running_loop().time() + 0.3
        with pytest.raises(DeadlineExceeded, match=r"after \d+ ms with \d windows of sliding\(20/10\) done") as caught:
            await engine.run(job_for(shuffled(100), query="late", deadline=deadline))
        assert caught.value.metadata == {"windows_done": str(len(ranker.ranked))}
        ranker.release.set()
        await engine.run(job_for([1, 2], query="after"))
    assert queries(ranker).count("late") <= windows_done + 1, "the running window may end"
    assert queries(ranker)[-1] == "after"


async def test_deadline_that_has_passed_runs_no_window() -> None:
    ranker = NumberRanker()
    async with engine_over(ranker) as engine:
        with pytest.raises(DeadlineExceeded, match=r"with 0 windows of sliding\(20/10\) done; allow more time"):
            await engine.run(job_for(shuffled(50), deadline=asyncio.get_running_loop().time() - 1))
    assert ranker.ranked == []


async def test_deadline_far_away_changes_nothing() -> None:
    numbers = shuffled(50)
    async with engine_over(NumberRanker()) as engine:
        ranking = await engine.run(job_for(numbers, deadline=asyncio.get_running_loop().time() + 1000))
    assert positions(ranking)[:10] == best_first(numbers)[:10]


def raises(windows: Sequence[Window]) -> list[WindowRanking]:
    raise ValueError("boom")


def all_scores(score: float) -> Callable[[Sequence[Window]], list[WindowRanking]]:
    return lambda windows: [WindowRanking((score,) * len(window.passages)) for window in windows]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (raises, r"ValueError\('boom'\)"),
        (lambda _: [], r"ranker gave \[\] scores for \[2\]"),
        (lambda windows: [WindowRanking((1.0,))] * len(windows), r"ranker gave \[1\] scores for \[2\]"),
        (lambda windows: [WindowRanking((1.0, 2.0))] * (len(windows) + 1), r"ranker gave \[2, 2\] scores for \[2\]"),
        (all_scores(math.nan), "a score that is no number"),
        (all_scores(math.inf), "a score that is no number"),
        (lambda _: None, "TypeError"),
    ],
    ids=["raises", "no ranking", "too few scores", "too many rankings", "nan", "infinity", "none"],
)
async def test_failure_hits_its_own_window_only(
    answer: Callable[[Sequence[Window]], list[WindowRanking]], problem: str
) -> None:
    batches: list[int] = []

    def answer_and_count(windows: Sequence[Window]) -> list[WindowRanking]:
        batches.append(len(windows))
        return answer(windows)

    numbers = shuffled(50)
    ranker = HeldBrokenRanker(answer_and_count)
    async with engine_over(ranker) as engine:
        (first,) = start(engine.run(job_for(numbers)))
        await held_at(ranker)
        tasks = start(*(engine.run(job) for job in (poisoned(), job_for(numbers), poisoned(), job_for(numbers))))
        await waiting(engine, 4)
        ranker.release.set()
        await asyncio.wait([first, *tasks])
        afterwards = engine.run(job_for(numbers))
        rankings = await asyncio.gather(first, *tasks[1::2], afterwards)
    assert max(batches) > 1, "a poisoned window shared its batch"
    for failed in tasks[::2]:
        with pytest.raises(RankerFailure, match=f"model number failed to rank: .*{problem}.*; this is a bug"):
            await failed
    assert [positions(ranking)[:10] for ranking in rankings] == [best_first(numbers)[:10]] * 4


async def test_failed_window_keeps_its_cause() -> None:
    async with engine_over(BrokenRanker(raises)) as engine:
        with pytest.raises(RankerFailure) as caught:
            await engine.run(poisoned())
    assert isinstance(caught.value.__cause__, ValueError)


async def test_full_queue_refuses_and_takes_more_once_it_has_room() -> None:
    """Of 50 tokens each, two are in work: one runs, one waits."""
    ranker = HeldRanker()
    numbers = shuffled(5)
    async with engine_over(ranker, EngineConfig(max_batch_tokens=1, max_queue_tokens=100)) as engine:
        running = start(engine.run(job_for(numbers, query="0")))
        await held_at(ranker)
        running += start(engine.run(job_for(numbers, query="1")))
        await waiting(engine, 1)
        with pytest.raises(Overloaded, match="100 tokens wait already; 50 more exceed the queue's 100; try again"):
            await engine.run(job_for(numbers, query="2"))
        ranker.release.set()
        await asyncio.gather(*running)
        afterwards = await engine.run(job_for(numbers, query="after"))
    assert queries(ranker) == ["0", "1", "after"]
    assert positions(afterwards) == best_first(numbers)


async def test_models_without_tokens_have_a_bounded_queue_too() -> None:
    """A request to identity counts one token a window, and more by the passages before it is prepared."""
    config = EngineConfig(max_queue_tokens=100)
    async with Engine({"number": IdentityRanker()}, config) as engine:
        outcomes = await asyncio.gather(
            *(engine.run(job_for(shuffled(30), Single(30))) for _ in range(10)), return_exceptions=True
        )
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 7
    assert sum(isinstance(outcome, Ranking) for outcome in outcomes) == 3


async def test_deadline_that_the_measured_rate_cannot_meet_is_refused_before_anything_is_prepared() -> None:
    ranker = WatchedRanker()
    async with engine_over(ranker) as engine:
        await engine.run(job_for(shuffled(20)))  # so many tokens a passage are 10
        at_rate(engine, 100.0)
        with pytest.raises(DeadlineExceeded, match=r"18\d{3} ms of work remain and the deadline is in \d+ ms"):
            await engine.run(job_for(shuffled(100), deadline=in_s(10)))
        await engine.run(job_for(shuffled(100), deadline=in_s(1000)))
    assert ranker.prepared == 2


async def test_deadline_that_the_requests_own_tokens_rule_out_is_refused_before_a_window_runs() -> None:
    """Before the first window of a model, a passage is taken for one token."""
    ranker = WatchedRanker()
    async with engine_over(ranker) as engine:
        at_rate(engine, 100.0)
        with pytest.raises(DeadlineExceeded, match="18000 ms of work remain"):
            await engine.run(job_for(shuffled(100), deadline=in_s(10)))
    assert (ranker.prepared, ranker.ranked) == (1, [])


async def test_deadline_that_the_queue_rules_out_is_an_overload() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker) as engine:
        at_rate(engine, 100.0)
        (first,) = start(engine.run(job_for(shuffled(100))))  # 18 s
        await held_at(ranker)
        with pytest.raises(Overloaded, match="1800 tokens wait already, which would make the request") as caught:
            await engine.run(job_for(shuffled(100), deadline=in_s(30)))
        assert caught.value.retry_after_s == pytest.approx(18.0)
        ranker.release.set()
        await first


async def test_shorter_request_overtakes_a_longer_one_that_came_first() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker, ONE_BY_ONE) as engine:
        at_rate(engine, 1000.0)
        (first,) = start(engine.run(job_for([1, 2])))
        await held_at(ranker)
        (long,) = start(engine.run(job_for(shuffled(100), query="long")))
        await waiting(engine, 1)
        (short,) = start(engine.run(job_for(shuffled(20), query="short")))
        await waiting(engine, 2)
        ranker.release.set()
        await asyncio.gather(first, long, short)
    assert queries(ranker)[1:] == ["short", *["long"] * 9]


async def test_window_that_became_hopeless_in_the_queue_is_dropped_at_once() -> None:
    """Not when its deadline comes. Some 20 tokens a second are measured, 1800 remain."""
    ranker = HeldRanker()
    async with engine_over(ranker, ONE_BY_ONE) as engine:
        (first,) = start(engine.run(job_for([1, 2], query="first")))
        await held_at(ranker)
        (hopeless,) = start(engine.run(job_for(shuffled(100), query="hopeless", deadline=in_s(30))))
        await waiting(engine, 1)
        at_rate(engine, 0.1)
        ranker.release.set()
        with pytest.raises(DeadlineExceeded, match="ms of work remain and the deadline is in"):
            await hopeless
        await first
    assert queries(ranker) == ["first"]


async def test_out_of_memory_halves_the_budget_and_runs_the_windows_alone() -> None:
    ranker = SmallRanker(most_windows=5)
    async with engine_over(ranker) as engine:
        (first,) = start(engine.run(job_for([1, 2])))
        await held_at(ranker)
        (eight,) = start(engine.run(job_for(shuffled(80), Blocks(10))))
        await waiting(engine, 8)
        ranker.release.set()
        ranking = await eight
        again = await engine.run(job_for(shuffled(80), Blocks(10)))
        await first
    assert ranker.tried == [1, 8, *[1] * 8, 4, 4]
    assert positions(ranking) == positions(again)


async def test_window_that_exceeds_the_memory_alone_says_so_and_leaves_the_budget() -> None:
    ranker = SmallRanker(most_windows=0)
    async with engine_over(ranker) as engine:
        with pytest.raises(RankerFailure, match="a window of 20 tokens exceeds the memory; use a smaller window_size"):
            await engine.run(job_for([1, 2]))


# --- partial answers ---


@pytest.mark.parametrize("windows_done", [0, 1, 5])
async def test_partial_answer_is_the_best_order_so_far(windows_done: int) -> None:
    ranker = HeldRanker(free_batches=windows_done)
    numbers = shuffled(100)
    async with engine_over(ranker) as engine:
        ranking = await engine.run(job_for(numbers, deadline=in_s(0.5), allow_partial=True))
        ranker.release.set()
    order = list(range(100))
    for start_, end in list(spans(100, 20, 10))[:windows_done]:
        order[start_:end] = sorted(order[start_:end], key=lambda position: -numbers[position])
    assert positions(ranking) == order
    assert ranking.trace.completeness is (Completeness.PARTIAL if windows_done else Completeness.NONE)
    assert ranking.trace.reason == f"the deadline came after {windows_done} of 9 windows of sliding(20/10)"
    assert len(ranking.trace.windows) == windows_done


async def test_partial_answer_comes_before_the_deadline() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker, EngineConfig(answer_margin_s=1000.0)) as engine:
        ranking = await asyncio.wait_for(
            engine.run(job_for([1, 2], deadline=in_s(1000), allow_partial=True)), timeout=60
        )
        ranker.release.set()
    assert ranking.trace.completeness is Completeness.NONE


async def test_partial_answer_to_a_deadline_that_has_passed_is_the_first_stages_order() -> None:
    ranker = NumberRanker()
    async with engine_over(ranker) as engine:
        ranking = await engine.run(job_for(shuffled(50), deadline=in_s(-1), allow_partial=True))
    assert positions(ranking) == list(range(50))
    assert ranking.trace.completeness is Completeness.NONE
    assert ranker.ranked == []


async def test_who_allows_a_partial_answer_is_not_refused_for_a_deadline() -> None:
    async with engine_over(NumberRanker()) as engine:
        at_rate(engine, 0.001)
        ranking = await engine.run(job_for(shuffled(50), deadline=in_s(1000), allow_partial=True))
    assert ranking.trace.completeness is Completeness.FULL


async def test_partial_answer_takes_its_waiting_windows_with_it() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker, ONE_BY_ONE) as engine:
        (first,) = start(engine.run(job_for([1, 2], query="first")))
        await held_at(ranker)
        ranking = await engine.run(job_for(shuffled(50), query="late", deadline=in_s(0.2), allow_partial=True))
        ranker.release.set()
        await first
        await engine.run(job_for([1, 2], query="after"))
    assert ranking.trace.completeness is Completeness.NONE
    assert queries(ranker) == ["first", "after"]


# --- the size of batches ---


async def test_ranker_that_reads_windows_one_by_one_gets_one() -> None:
    ranker = NumberRanker()
    ranker.info = replace(ranker.info, batching="one_by_one")
    async with engine_over(ranker, EngineConfig()) as engine:
        await engine.run(job_for(shuffled(30), Blocks(5)))
    assert ranker.batches == [1] * 6


async def test_batch_on_a_cpu_holds_512_tokens() -> None:
    ranker = NumberRanker()
    async with engine_over(ranker, EngineConfig()) as engine:
        await engine.run(job_for(shuffled(100), Blocks(20)))  # 200 tokens each
    assert ranker.batches == [2, 2, 1]


async def test_batch_size_is_measured_on_an_accelerator() -> None:
    ranker = NumberRanker()
    ranker.info = replace(ranker.info, on_accelerator=True)
    async with engine_over(ranker, EngineConfig()):
        assert ranker.batches[0] == 1
        assert 2 in ranker.batches


async def test_configured_batch_size_needs_no_measurement() -> None:
    ranker = NumberRanker()
    ranker.info = replace(ranker.info, on_accelerator=True)
    async with engine_over(ranker, EngineConfig(max_batch_tokens=100)):
        pass
    assert ranker.batches == []


async def test_closing_lets_the_running_batch_end_and_fails_what_waits() -> None:
    ranker = HeldRanker()
    engine = await engine_over(ranker, ONE_BY_ONE).__aenter__()
    running, *waiting = start(*(engine.run(job_for([1, 2], query=str(number))) for number in range(4)))
    await held_at(ranker)
    closing = asyncio.create_task(engine.__aexit__())
    ranker.release.set()
    await closing
    assert positions(await running) == [1, 0]
    for task in waiting:
        with pytest.raises(ShuttingDown, match="the service is stopping; try another replica"):
            await task
    assert queries(ranker) == ["0"]


async def test_closed_engine_takes_no_job() -> None:
    ranker = NumberRanker()
    async with engine_over(ranker) as engine:
        pass
    with pytest.raises(ShuttingDown, match="the service is stopping"):
        await engine.run(job_for([1, 2]))
    assert ranker.ranked == []


async def test_times_are_parts_of_the_whole() -> None:
    async with engine_over(NumberRanker(), EngineConfig(max_batch_tokens=200)) as engine:
        rankings = await asyncio.gather(*(engine.run(job_for(shuffled(n))) for n in range(60)))
    for trace in (ranking.trace for ranking in rankings):
        parts = [trace.queue_ms, trace.prepare_ms, trace.model_ms]
        assert min(parts) >= 0
        assert sum(parts) <= trace.total_ms + 1e-6


async def test_wait_of_one_is_the_running_time_of_another() -> None:
    ranker = HeldRanker()
    async with engine_over(ranker, ONE_BY_ONE) as engine:
        tasks = start(*(engine.run(job_for([1, 2], query=str(number))) for number in range(2)))
        await held_at(ranker)
        await asyncio.sleep(0.02)
        ranker.release.set()
        first, second = [(await task).trace for task in tasks]
    assert first.model_ms >= 19
    assert second.queue_ms >= 19


async def test_closing_fails_a_job_that_has_more_windows() -> None:
    """Its running window ends; the next one would wait for an engine that no longer runs."""
    ranker = HeldRanker()
    engine = await engine_over(ranker).__aenter__()
    (task,) = start(engine.run(job_for(shuffled(50))))
    await held_at(ranker)
    closing = asyncio.create_task(engine.__aexit__())
    await asyncio.sleep(0)  # closing has begun
    ranker.release.set()
    await closing
    with pytest.raises(ShuttingDown):
        await asyncio.wait_for(task, 10)
    assert len(ranker.ranked) == 1


async def test_a_rankers_own_timeout_is_no_deadline() -> None:
    class TimingOut(NumberRanker):
        def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
            raise TimeoutError("a disk, perhaps")

    async with engine_over(TimingOut()) as engine:
        with pytest.raises(RankerFailure, match=r"failed to prepare: TimeoutError\('a disk, perhaps'\)"):
            await engine.run(job_for([1, 2]))


async def test_job_that_is_late_is_not_prepared() -> None:
    class Watching(NumberRanker):
        prepared = 0

        def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
            self.prepared += 1
            return super().prepare(query, passages)

    ranker = Watching()
    async with engine_over(ranker) as engine:
        with pytest.raises(DeadlineExceeded):
            await engine.run(replace(job_for([1, 2]), deadline=asyncio.get_running_loop().time() - 1))
    assert ranker.prepared == 0
