"""Trace of a ranking as a protobuf message: its windows with their passages and scores, bounded in size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from rerank.types import Trace, WindowTrace
from rerank.v1 import rerank_pb2 as pb

#: Passages in all windows of a message: some 100 kB. Sliding windows over 1,000 candidates hold 2,000.
MAX_PASSAGES = 10_000


def trace_message(trace: Trace) -> pb.Trace:
    """The trace of a ranking; the windows with which it would hold more than MAX_PASSAGES are left out."""
    return pb.Trace(windows=map(_window, _first_windows(trace.windows)), input_order=trace.input_order)


def _first_windows(windows: Sequence[WindowTrace]) -> Sequence[WindowTrace]:
    passages = list(accumulate(len(window.positions) for window in windows))
    return windows[: bisect_right(passages, MAX_PASSAGES)]


def _window(window: WindowTrace) -> pb.WindowTrace:
    return pb.WindowTrace(
        round=window.round,
        model=window.model,
        positions=window.positions,
        scores=window.scores,
        score_kind=f"SCORE_KIND_{window.score_kind.name}",
        permutation=window.permutation,
        tokens=window.tokens,
        truncated=window.truncated,
        queue_ms=window.queue_ms,
        model_ms=window.model_ms,
    )
