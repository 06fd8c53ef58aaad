"""The steps around the engine: what a ranking says of the model's output."""

from __future__ import annotations

import pytest

from rerank.models.encoder import Encoder
from rerank.types import RankOptions, StrategyKind
from tests.fakes import NumberRanker, RamblingRanker, numbered_passages
from tests.serving import reranker_of


@pytest.mark.parametrize(
    ("options", "share"),
    [
        (RankOptions(model="rambling"), "40 of 40 places (100%)"),  # two windows of 20
        (RankOptions(model="rambling", strategy=StrategyKind.CASCADE, preranker="number", window_size=5), "5 of 5"),
        (RankOptions(model="number"), ""),
    ],
)
async def test_share_of_repaired_places_is_a_warning_of_the_reply(
    encoder: Encoder, options: RankOptions, share: str
) -> None:
    """An order that was repaired in every place is the first stage's, and would look like a tie with it."""
    async with reranker_of(encoder, {"number": NumberRanker(), "rambling": RamblingRanker()}) as reranker:
        trace = (await reranker.rerank("q", numbered_passages(range(30)), options)).trace
    assert trace.model_warning.startswith(share)
    assert ("were repaired; passages that it did not name kept their order" in trace.model_warning) == bool(share)
