"""The Grafana dashboard: each of its queries reads metrics that a live /metrics has, by labels that they have."""

import json
import re
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rerank.v1 import rerank_pb2 as pb
from tests.serving import METRICS, REQUEST, held_service, refusal, wait_for

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "rerank.json"
#: A metric with the labels that select it, and labels that group it or that name its lines.
SELECTED = re.compile(r'\b((?:rerank|process)_\w+)(?:\{(\w+)!?="[^"]*"\})?')
GROUPED = re.compile(r"by \(([\w, ]+)\)")
NAMED = re.compile(r"\{\{(\w+)\}\}")


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Sample name → its labels, in the metrics of a service that has answered, refused and cancelled calls."""
    with pytest.MonkeyPatch.context() as patch, held_service(telemetry=METRICS, limits={"max_calls": 1}) as held:
        patch.setattr("rerank.types.ANSWER_MARGIN_S", 30.0)
        cancelled = held.start_call(candidates=REQUEST.candidates)
        assert refusal(held.answers).code is grpc.StatusCode.RESOURCE_EXHAUSTED
        cancelled.cancel()
        wait_for(lambda: 'status="CANCELLED"' in held.metrics())
        wait_for(lambda: "rerank_calls_in_flight 0.0" in held.metrics())
        held.ranker.release.set()
        assert held.answers()
        held.stub.Rerank(pb.RerankRequest(query="q", candidates=REQUEST.candidates, allow_partial=True), timeout=20)
        wait_for(lambda: "rerank_batches_after_cancellation_total{" in held.metrics())
        wait_for(lambda: "rerank_answers_total{" in held.metrics())
        families = text_string_to_metric_families(held.metrics())
        return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_metric_and_label_of_the_dashboard_is_served(labels):
    read = set()
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    for target in [target for panel in panels for target in panel["targets"]]:
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
