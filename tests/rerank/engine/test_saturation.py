"""The batch size that saturates a device, measured on simulated devices of known speed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rerank.engine.saturation import saturating_tokens
from rerank.types import EncodedWindow, Window, WindowRanking
from tests.fakes import NumberRanker


class Device(NumberRanker):
    """Takes 1 s for up to `parallel` windows, then time proportional to their number. `now_s` is its clock."""

    def __init__(self, parallel: float, most: int = 10**9, tokens: int = 100, max_window_size: int = 100) -> None:
        super().__init__(max_window_size)
        self.now_s = 0.0
        self._parallel = parallel
        self._most = most
        self._tokens = tokens

    def encode(self, window: Window) -> EncodedWindow:
        return EncodedWindow(window, tokens=self._tokens)

    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        if len(windows) > self._most:
            raise MemoryError
        self.now_s += max(1.0, len(windows) / self._parallel)
        return super().rank(windows)

    def saturating_tokens(self) -> int:
        return saturating_tokens(self, lambda: self.now_s)


@pytest.mark.parametrize("parallel", [1, 2, 8, 64])
def test_smallest_saturating_batch_is_chosen(parallel: int) -> None:
    assert Device(parallel).saturating_tokens() == parallel * 100


@pytest.mark.parametrize(("parallel", "tokens"), [(8.3, 800), (8.5, 1600)])
def test_doubling_must_gain_five_percent(parallel: float, tokens: int) -> None:
    """From 8 to 16 windows, these devices gain 3.7 % and 6.2 %."""
    assert Device(parallel).saturating_tokens() == tokens


def test_batch_that_exceeds_the_memory_is_not_chosen() -> None:
    assert Device(parallel=64, most=10).saturating_tokens() == 800


def test_doubling_ends_at_the_largest_batch() -> None:
    assert Device(parallel=10**9).saturating_tokens() == 102_400


def test_doubling_ends_for_a_model_without_tokens() -> None:
    assert Device(parallel=1, tokens=0).saturating_tokens() == 1


def test_windows_are_no_larger_than_the_ranker_reads() -> None:
    device = Device(parallel=1, max_window_size=3)
    device.saturating_tokens()
    assert {len(window.passages) for window in device.ranked} == {3}
