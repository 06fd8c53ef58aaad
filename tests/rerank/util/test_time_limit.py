"""Functions that are called one at a time, each within a time limit."""

import threading
import time

import pytest

from rerank.util.time_limit import BlockedByHungCall, within


def test_time_begins_when_the_function_has_its_turn():
    turn, begun = threading.Lock(), threading.Event()

    def first() -> None:
        begun.set()
        time.sleep(0.7)

    thread = threading.Thread(target=lambda: within(5, first, turn))
    thread.start()
    begun.wait(5)
    assert within(0.2, lambda: 3, turn) == 3
    thread.join()


def test_late_function_that_runs_in_python_gives_its_turn_back():
    turn = threading.Lock()

    def endless() -> None:
        while True:
            pass

    with pytest.raises(TimeoutError):
        within(0.1, endless, turn)
    assert within(5, lambda: 3, turn) == 3


def test_function_behind_one_that_hangs_is_not_called():
    turn, released = threading.Lock(), threading.Event()
    with pytest.raises(TimeoutError):
        within(0.1, lambda: released.wait(60), turn)  # which waits outside of Python's own code
    calls = list[int]()
    try:
        with pytest.raises(BlockedByHungCall):
            within(0.1, lambda: calls.append(1), turn)
    finally:
        released.set()
    assert within(5, lambda: 3, turn) == 3
    assert calls == []
