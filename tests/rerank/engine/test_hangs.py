"""A model that hangs is named and fails its requests; the others go on, and the engine closes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rerank.config import EngineConfig
from rerank.engine import scheduler
from rerank.engine.engine import Engine
from rerank.errors import RankerFailure
from rerank.types import Query, Window
from tests.fakes import NumberRanker
from tests.rerank.engine.harness import positions, request_for, wait_for


def hanging_ranker(method: str) -> NumberRanker:
    """Hangs in one of its methods on the query "hang", until `release` is set."""

    def hang(called: str, first: Query | Window | Sequence[Window], *_: Any) -> None:
        query = first if isinstance(first, Query) else (first if isinstance(first, Window) else first[0]).query
        if called == method and query.text == "hang":
            ranker.release.wait(timeout=60)

    ranker = NumberRanker(instead=hang)
    return ranker


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LIMIT_S", "_UNKNOWN_LIMIT_S", "_CLOSE_S"):
        monkeypatch.setattr(scheduler, name, 0.2)


@pytest.mark.parametrize("method", ["prepare", "encode", "score"])
async def test_model_that_hangs_fails_until_it_returns_and_others_go_on(method):
    ranker, phase = hanging_ranker(method), "rank" if method == "score" else "prepare"
    async with Engine({"number": ranker, "other": NumberRanker()}, EngineConfig()) as engine:
        for query in ("hang", "q"):
            with pytest.raises(RankerFailure, match=rf"{phase} number has not ended after 0 s; restart[^;]*$"):
                await engine.run(request_for([1, 2], query=query))
        assert list(engine.problems) == ["number"]
        assert positions(await engine.run(request_for([1, 2], model="other"))) == [1, 0]
        ranker.release.set()
        await wait_for(lambda: not engine.problems)
        assert positions(await engine.run(request_for([1, 2]))) == [1, 0]


@pytest.mark.parametrize("method", ["prepare", "encode", "score"])
async def test_engine_closes_although_a_model_hangs(method):
    ranker = hanging_ranker(method)
    engine = Engine({"number": ranker}, EngineConfig())
    await engine.__aenter__()
    run = asyncio.create_task(engine.run(request_for([1, 2], query="hang")))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(engine.__aexit__(None, None, None), 5)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    ranker.release.set()


async def test_panic_of_a_tokenizer_fails_its_request_only():
    """It is no Exception, and ended the loop of its scheduler: the model gave no answer any more."""

    class PanicException(BaseException):
        pass

    def panic(method: str, query: Any, *_: Any) -> None:
        if method == "prepare" and query.text == "panic":
            raise PanicException("retry-limit-in-match over")

    async with Engine({"number": NumberRanker(instead=panic)}, EngineConfig()) as engine:
        with pytest.raises(RankerFailure, match=r"in-match over; use another checkpoint or shorter texts$"):
            await engine.run(request_for([1, 2], query="panic"))
        assert positions(await engine.run(request_for([1, 2]))) == [1, 0]
