"""Traces for tests of what is made from them."""

from __future__ import annotations

from typing import Any

from rerank.types import Completeness, Trace


def trace_of(**fields: Any) -> Trace:
    """A trace of a full ranking without windows, but for these fields."""
    default = {
        "model": "m",
        "strategy": "s",
        "windows": (),
        "rounds": 1,
        "truncated_doc_ids": (),
        "repairs": 0,
        "completeness": Completeness.FULL,
        "reason": "",
        "queue_ms": 0.0,
        "prepare_ms": 0.0,
        "model_ms": 0.0,
        "decode_ms": 0.0,
        "total_ms": 0.0,
    }
    return Trace(**(default | fields))
