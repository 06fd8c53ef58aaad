"""Failures of the service to rank a valid request, in whose place the request may get an answer; see OnFailure."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rerank.errors import (
    CheckpointError,
    DeadlineExceeded,
    ModelServerUnavailable,
    ModelServerUnfit,
    Overloaded,
    RankerFailure,
    RerankError,
    SelfTestFailed,
)

log = logging.getLogger(__name__)

#: Class of the failure → what happened, in words that "after 3 of 9 windows" can follow. ShuttingDown is none of them,
#: because another replica can rank the request.
FAILURES: Mapping[type[Exception], str] = {
    DeadlineExceeded: "the deadline came",
    Overloaded: "the queue had no room",
    CheckpointError: "a model is not served",
    SelfTestFailed: "a model is not served",
    ModelServerUnavailable: "no inference server answered",
    ModelServerUnfit: "no inference server gave scores",
    RankerFailure: "the model failed",
}


def told(failure: Exception) -> str:
    """The message of a failure, as the caller is told it. That of a bug, which may say anything, is logged instead."""
    if isinstance(failure, RerankError):
        return str(failure)
    log.error("bug: a request was answered without its ranking, which failed", exc_info=failure)
    return "internal error; this is a bug of the service, see its log for details"
