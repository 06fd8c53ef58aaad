"""The Grafana dashboard: each of its queries reads metrics that a live /metrics has, by labels that they have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rerank.config import Limits, TelemetryConfig
from rerank.v1 import rerank_pb2 as pb
from tests.rerank.telemetry.test_metrics import scraped
from tests.serving import TIMEOUT_S, held_service, numbered_candidates, refusal, wait_for

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "rerank.json"
#: A metric with the labels that select it, and labels that group it or that name its lines.
SELECTED = re.compile(r'\b((?:rerank|process)_\w+)(?:\{(\w+)!?="[^"]*"\})?')
GROUPED = re.compile(r"by \(([\w, ]+)\)")
NAMED = re.compile(r"\{\{(\w+)\}\}")


def targets() -> Iterator[dict[str, Any]]:
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        yield from panel["targets"]


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Sample name → its labels, in the metrics of a service that has answered, refused and cancelled calls."""
    telemetry, limits = TelemetryConfig(metrics="127.0.0.1:0"), Limits(max_calls=1)
    with pytest.MonkeyPatch.context() as patch, held_service(telemetry=telemetry, limits=limits) as held:
        patch.setattr("rerank.types.ANSWER_MARGIN_S", 30.0)
        request = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]))
        cancelled = held.start_call(candidates=numbered_candidates([1, 2]))
        assert refusal(lambda: held.stub.Rerank(request, timeout=TIMEOUT_S)).code is grpc.StatusCode.RESOURCE_EXHAUSTED
        cancelled.cancel()
        wait_for(lambda: 'status="CANCELLED"' in scraped(held))
        wait_for(lambda: "rerank_calls_in_flight 0.0" in scraped(held))
        held.ranker.release.set()
        held.stub.Rerank(request, timeout=TIMEOUT_S)
        late = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]), allow_partial=True)
        held.stub.Rerank(late, timeout=20)
        wait_for(lambda: "rerank_batches_after_cancellation_total{" in scraped(held))
        wait_for(lambda: "rerank_answers_total{" in scraped(held))
        families = text_string_to_metric_families(scraped(held))
        return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_metric_and_label_of_the_dashboard_is_served(labels):
    read = set()
    for target in targets():
        expression = target["expr"]
        selected = SELECTED.findall(expression)
        assert selected, expression
        used = {name.strip() for group in GROUPED.findall(expression) for name in group.split(",")}
        used |= set(NAMED.findall(target["legendFormat"]))
        for metric, label in selected:
            assert metric in labels, f"{expression} reads {metric}, which the service does not have"
            assert used | {label} - {""} <= labels[metric], f"{expression} uses labels that {metric} does not have"
            read.add(re.sub(r"_(bucket|sum|count)$", "", metric))
    own = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels if re.match(r"rerank_(?!.*_created$)", name)}
    assert own <= read, "each metric of the service has a place in the dashboard"
