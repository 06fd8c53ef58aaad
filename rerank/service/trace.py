"""Trace of a ranking as a protobuf message: its windows with their passages and scores, bounded in size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

from google.protobuf.message import Message

from rerank.types import Trace, WindowTrace
from rerank.v1 import rerank_pb2 as pb

M = TypeVar("M", bound=Message)

#: Passages in all windows of a message: some 100 kB. Sliding windows over 1,000 candidates hold 2,000.
MAX_PASSAGES = 10_000


def trace_message(trace: Trace) -> pb.Trace:
    """The trace of a ranking; the windows with which it would hold more than MAX_PASSAGES are left out."""
    return pb.Trace(windows=map(_window, _first_windows(trace.windows)), input_order=trace.input_order)


def _first_windows(windows: Sequence[WindowTrace]) -> Sequence[WindowTrace]:
    passages = list(accumulate(len(window.positions) for window in windows))
    return windows[: bisect_right(passages, MAX_PASSAGES)]


def _window(window: WindowTrace) -> pb.WindowTrace:
    return message_like(pb.WindowTrace, window, score_kind=f"SCORE_KIND_{window.score_kind.name}")


def message_like(kind: type[M], values: object, **others: Any) -> M:
    """A message with the fields that an object has under the same names, and with others."""
    names = [field.name for field in kind.DESCRIPTOR.fields if field.name not in others and hasattr(values, field.name)]
    return kind(**{name: getattr(values, name) for name in names}, **others)
