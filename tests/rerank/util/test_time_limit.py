"""Work on a thread of its own."""

from __future__ import annotations

import threading

from rerank.util.time_limit import in_thread


def test_work_ends_where_the_wait_for_it_was_given_up() -> None:
    start = threading.Event()
    outcome, thread = in_thread(start.wait)
    assert not outcome.cancel()
    start.set()
    thread.join(5)
    assert outcome.result(5)
