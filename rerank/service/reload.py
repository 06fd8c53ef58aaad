"""New keys and limits for a running service, as SIGHUP asks for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.reranking.reranker import AsyncReranker
from rerank.service.calls import CallsInFlight

log = logging.getLogger(__name__)


def reload(reranker: AsyncReranker, calls: CallsInFlight, read_config: Callable[[], ServiceConfig]) -> None:
    """Reads keys and limits again, for calls that arrive from now on. Invalid ones are logged and change nothing.

    Other settings need a restart; the log names those that have changed.
    """
    if calls.keys is not None:
        calls.keys.reload()
    try:
        config = read_config()
    except ConfigError as error:
        log.error("%s; the limits stay as they were", error)
        return
    before = reranker.config
    if ignored := list(_need_restart(before, config)):
        log.warning("%s: what changed takes effect after a restart", ", ".join(ignored))
    reranker.config = before.model_copy(update={"limits": config.limits})
    calls.limits = config.limits
    log.info("limits read again: %s", config.limits)


def _need_restart(before: ServiceConfig, after: ServiceConfig) -> Iterator[str]:
    for name in ServiceConfig.model_fields:
        if name != "limits" and getattr(before, name) != getattr(after, name):
            yield name
    if before.limits.max_message_bytes != after.limits.max_message_bytes:
        yield "limits.max_message_bytes"
