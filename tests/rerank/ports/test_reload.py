"""SIGHUP: keys and limits change for new calls; invalid settings and other settings change nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.rpc import error_details_pb2

from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from tests.serving import TIMEOUT_S, held_service, numbered_candidates, refusal, wait_for

THREE = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2, 3]))


def changed(config: ServiceConfig, **settings: Any) -> ServiceConfig:
    return ServiceConfig.model_validate(config.model_dump() | settings)


def test_limits_change_for_new_calls(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with held_service(encoder) as held:
        running = held.start_call(candidates=THREE.candidates)
        config = changed(held.reranker.config, limits={"max_candidates": 2, "max_calls": 2})
        held.served.server.reload(lambda: config)
        refused = refusal(lambda: held.stub.Rerank(THREE, timeout=TIMEOUT_S))
        assert refused.detail(error_details_pb2.ErrorInfo).metadata["limit"] == "2"
        wait_for(lambda: held.served.server.calls.number == 1)
        second = held.stub.Rerank.future(pb.RerankRequest(query="q", candidates=THREE.candidates[:2]))
        held.served.wait_for_calls(2)
        assert "2 calls are in flight" in refusal(lambda: held.stub.Rerank(THREE, timeout=TIMEOUT_S)).message
        held.ranker.release.set()
        assert [len(call.result(TIMEOUT_S).results) for call in (running, second)] == [3, 2]
    assert "limits read again: max_candidates=2" in caplog.text
    assert "restart" not in caplog.text


def test_other_settings_need_a_restart(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    with held_service(encoder) as held:
        before = held.reranker.config
        after = changed(before, drain_s=1.0, limits={"max_message_bytes": 1000})
        held.served.server.reload(lambda: after)
    assert "drain_s, limits.max_message_bytes: what changed takes effect after a restart" in caplog.text


def test_invalid_settings_change_nothing(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    def invalid() -> ServiceConfig:
        raise ConfigError("service.yaml: limits.max_calls: no number")

    with held_service(encoder) as held:
        before = held.served.server.calls.limits
        held.served.server.reload(invalid)
        assert held.served.server.calls.limits is before
    assert "service.yaml: limits.max_calls: no number; the limits stay as they were" in caplog.text
