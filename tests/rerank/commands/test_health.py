"""`rerank health`: its answer and its exit code."""

from __future__ import annotations

import pytest

from rerank.models.encoder import Encoder
from tests.rerank.commands.conftest import Command
from tests.serving import TIMEOUT_S, Served, held_service, numbered_candidates


@pytest.mark.parametrize("arguments", [(), ("--model", "identity"), ("--liveness",)])
def test_running_service_is_serving(rerank: Command, service: Served, arguments: tuple[str, ...]) -> None:
    outcome = rerank("health", "--target", service.address, *arguments)
    assert (outcome.code, outcome.out, outcome.err) == (0, "SERVING\n", "")


def test_draining_service_is_alive_but_not_ready(rerank: Command, encoder: Encoder) -> None:
    with held_service(encoder) as held:
        call = held.start_call(candidates=numbered_candidates([1, 2]))
        drained = held.served.start(held.served.server.drain(TIMEOUT_S))
        outcomes = {}
        for flags in ((), ("--liveness",)):
            outcome = rerank("health", "--target", held.served.address, *flags)
            outcomes[flags] = (outcome.code, outcome.out)
        held.ranker.release.set()
        assert len(call.result(TIMEOUT_S).results) == 2
        drained.result(TIMEOUT_S)
    assert outcomes == {(): (1, "NOT_SERVING\n"), ("--liveness",): (0, "SERVING\n")}


def test_unknown_model_and_missing_service_are_errors(rerank: Command, service: Served) -> None:
    assert rerank("health", "--target", service.address, "--model", "none").code == 2
    assert rerank("health", "--target", "127.0.0.1:1").error.startswith("no answer from 127.0.0.1:1: is `rerank serve`")
