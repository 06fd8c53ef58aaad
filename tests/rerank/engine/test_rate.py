"""Rate: the measured rates follow what a phase does, and small batches do not make it look slow for long."""

from __future__ import annotations

import pytest

from rerank.engine.scheduler import Rate


def measured(*batches: tuple[float, float]) -> Rate:
    """A rate of batches of (tokens, seconds), after the one that warms up."""
    rate = Rate()
    for tokens, seconds in [(1.0, 1000.0), *batches]:
        rate.observe(tokens, seconds)
    return rate


def test_first_batch_of_a_model_is_not_counted() -> None:
    assert (Rate().tokens_per_s, measured().tokens_per_s) == (None, None)
    assert measured((100, 0.5)).tokens_per_s == 200.0


def test_rate_follows_the_seconds_in_which_a_phase_worked() -> None:
    slower = measured(*[(1000, 1.0)] * 9, *[(100, 1.0)] * 9).tokens_per_s
    assert slower == pytest.approx(100, rel=0.2)
    faster = measured((10, 1.0), *[(100, 0.01)] * 1000).tokens_per_s
    assert faster == pytest.approx(10_000, rel=0.02)


@pytest.mark.parametrize("small", [(30, 0.005), (100, 0.0001)], ids=["fixed cost", "nothing to compute"])
def test_large_batches_decide_among_small_ones(small: tuple[float, float]) -> None:
    """Ten small ones for each large one, whose rate is a third and fifty times the large one's."""
    rate = measured(*[*[small] * 10, (20_000, 1.0)] * 5).tokens_per_s
    assert rate == pytest.approx(20_000, rel=0.1)
