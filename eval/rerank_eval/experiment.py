"""One call of an evaluation command: its systems, and the steps that every dataset goes through."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rerank import __version__
from rerank.commands.messages import strategy_message
from rerank.commands.run import console
from rerank.readers.qrels import Qrel
from rerank.v1 import rerank_pb2 as pb
from rerank_eval.measures import Evaluator
from rerank_eval.report import Evaluation
from rerank_eval.report_writer import write_report
from rerank_eval.results import Result, measure_variants
from rerank_eval.runner import Responses, Variant, run_variants
from rerank_eval.settings import EvaluationSettings
from rerank_eval.specs import SystemSpec, parse_systems
from rerank_eval.systems import ServiceOptions, System, open_systems
from rerank_eval.table import Summary

_PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu", "pyserini", "ir-measures")


@dataclass(frozen=True, slots=True)
class Experiment:
    """The systems of a call, with the settings by which they run on every dataset.

    Attributes:
        strategy: shared by all systems that have none of their own.
        loads: numbers of concurrent queries; quality is measured at the first.
    """

    settings: EvaluationSettings
    specs: Sequence[SystemSpec]
    strategy: pb.Strategy
    loads: Sequence[int]

    @classmethod
    def from_settings(cls, settings: EvaluationSettings) -> Experiment:
        """Parses the settings that both commands share. Raises: ConfigError when one of them is not valid."""
        specs = parse_systems(settings.ranker, settings.system, settings.model)
        strategy = strategy_message(
            settings.strategy,
            settings.window_size,
            settings.stride,
            preranker=settings.preranker,
            interpolation=settings.interpolation,
        )
        return cls(settings, specs, strategy, settings.loads)

    @property
    def fingerprint(self) -> dict[str, object]:
        """Settings that decide the responses, beside those of systems and candidates."""
        return {
            "encoder": self.settings.encoder,
            "order_prior": self.settings.order_prior,
            "versions": versions(),
        }

    @property
    def has_identity(self) -> bool:
        """True if a system is the first stage itself, which then needs no row of its own."""
        return any(spec.ranker == "identity" for spec in self.specs)

    def is_served(self, name: str) -> bool:
        return any(spec.name == name and spec.is_served for spec in self.specs)

    def open_systems(
        self, qrels: Iterable[Qrel], index: Path | None = None
    ) -> AbstractContextManager[dict[str, System]]:
        """The systems by name, and a service if they need one; see `rerank_eval.systems.open_systems`."""
        served = [spec.name for spec in self.specs if spec.is_served]
        if not self.settings.targets and (served or index):
            console.print(f"starting a service for {', '.join(served) or 'the first stage'} …")
        return open_systems(
            self.specs,
            self.strategy,
            qrels,
            targets=self.settings.targets,
            options=ServiceOptions(
                index=index,
                template=self.settings.template,
                decoding=self.settings.decoding,
                order_prior=self.settings.order_prior,
                encoder=self.settings.encoder,
                encoder_name=self.settings.encoder_name,
            ),
        )

    def run(self, variants: Sequence[Variant], query_ids: Sequence[str], out: Path) -> dict[int, Responses]:
        """Responses by number of concurrent queries; see `rerank_eval.runner.run_variants`."""
        return run_variants(variants, query_ids, out, self.loads, console)

    def measure(
        self,
        variants: Sequence[Variant],
        responses: Mapping[int, Responses],
        evaluator: Evaluator,
        out: Path,
        qrels_sha256: str,
        notes: Sequence[str] = (),
    ) -> list[Result]:
        """Results of all variants; see `rerank_eval.results.measure_variants`."""
        settings = {**self.settings.as_strings(), "qrels_sha256": qrels_sha256}
        return measure_variants(variants, responses, evaluator, out, settings, notes)

    def report(self, evaluation: Evaluation, out: Path) -> Summary:
        """Writes and prints the report of one dataset; see `rerank_eval.report_writer.write_report`."""
        return write_report(evaluation, out, self.settings.plots, console)


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages on which results depend."""
    installed = {"python": platform.python_version(), "rerank": __version__}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed
