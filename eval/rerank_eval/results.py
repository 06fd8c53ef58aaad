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
        costs: efficiency by the number of concurrent queries; empty if it was not timed.
        fingerprint: settings that decide its responses, with its model and the model's hash.
    """

    name: str
    metrics: MetricValues
    costs: Mapping[int, Efficiency] = field(default_factory=dict)
    fingerprint: Mapping[str, object] = field(default_factory=dict)

    @property
    def efficiency(self) -> Efficiency | None:
        """The efficiency of the run whose quality was measured."""
        return next(iter(self.costs.values()), None)


def measure_variants(
    variants: Sequence[Variant],
    responses: Mapping[int, Responses],
    evaluator: Evaluator,
    out: Path,
    settings: Mapping[str, object],
    notes: Sequence[str] = (),
) -> list[SystemResult]:
    """Measures every variant and writes its run.trec and measures.json.

    Args:
        responses: by number of concurrent queries; the quality is that of the first.
        settings: written into measures.json beside each variant's fingerprint.
        notes: sentences about the judgements, written into measures.json.

    Raises:
        ConfigError: the files cannot be written.
    """
    measured = next(iter(responses.values()))
    results = []
    for variant in variants:
        run = evaluator.preprocess({response.query_id: response.ranking.docs for response in measured[variant.name]})
        metrics = evaluator.evaluate(run)
        write_run(variant_folder(variant, variants, out), run, metrics, {**settings, **variant.fingerprint}, notes)
        costs = {load: efficiency(rows[variant.name]) for load, rows in responses.items() if variant.name in rows}
        timed = {load: cost for load, cost in costs.items() if cost}
        results.append(SystemResult(variant.name, metrics, timed, variant.fingerprint))
    return results
