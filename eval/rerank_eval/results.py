"""Measures every system of an evaluation, and writes its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rerank_eval.efficiency import Efficiency, efficiency
from rerank_eval.measures import Evaluator, MetricValues
from rerank_eval.run_files import write_run
from rerank_eval.runner import Responses, Variant, variant_folder


@dataclass(frozen=True, slots=True)
class SystemResult:
    """The result of one system: its measures and its cost.

    Attributes:
        efficiency: None if it was not timed.
        fingerprint: settings that decide its responses, with its model and the model's hash.
    """

    name: str
    metrics: MetricValues
    efficiency: Efficiency | None = None
    fingerprint: Mapping[str, object] = field(default_factory=dict)


def measure_variants(
    variants: Sequence[Variant],
    responses: Responses,
    evaluator: Evaluator,
    out: Path,
    settings: Mapping[str, object],
    notes: Sequence[str] = (),
) -> list[SystemResult]:
    """Measures every variant and writes its run.trec and measures.json.

    Args:
        settings: written into measures.json beside each variant's fingerprint.
        notes: sentences about the judgements, written into measures.json.

    Raises:
        ConfigError: the files cannot be written.
    """
    results = []
    for variant in variants:
        run = evaluator.counted({response.query_id: response.ranking.docs for response in responses[variant.name]})
        metrics = evaluator.evaluate(run)
        folder = variant_folder(variant.name, len(variants), out)
        write_run(folder, run, metrics, {**settings, **variant.fingerprint}, notes)
        results.append(SystemResult(variant.name, metrics, efficiency(responses[variant.name]), variant.fingerprint))
    return results
