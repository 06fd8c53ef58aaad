"""What both commands, and all datasets of one call, have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ir_measures import Qrel

from rerank.commands.cli import console
from rerank.v1 import rerank_pb2 as pb
from rerank_eval.experiment import Answers, Arm, Judge, Result, collect, collect_under_loads, measure_all
from rerank_eval.output import versions
from rerank_eval.publish import Choices
from rerank_eval.systems import Spec, System, open_systems


@dataclass(frozen=True, slots=True)
class Setup:
    """The systems and how they are asked.

    Attributes:
        schedule: of all systems that have none of their own.
        loads: queries under way at once; the first is that of the answers which are measured.
        given: the command line, for the reports.
    """

    specs: Sequence[Spec]
    schedule: pb.Strategy
    template: str
    encoder: str
    target: str
    loads: Sequence[int]
    choices: Choices
    given: Mapping[str, str]

    @property
    def decisive(self) -> dict[str, object]:
        """What decides the answers, beside systems and candidates."""
        return {"encoder": self.encoder, "versions": versions()}

    @property
    def has_identity(self) -> bool:
        """Whether a system is the first stage itself, which then needs no row of its own."""
        return any(spec.ranker == "identity" for spec in self.specs)

    def opened(self, qrels: Iterable[Qrel], index: Path | None = None) -> AbstractContextManager[dict[str, System]]:
        """See `open_systems`."""
        return open_systems(self.specs, self.template, self.target, qrels, self.schedule, index, self.encoder)

    def is_served(self, name: str) -> bool:
        return any(spec.name == name and spec.is_served for spec in self.specs)

    def answers(self, arms: Sequence[Arm], query_ids: Sequence[str], out: Path) -> dict[int, Answers]:
        """By load, under all of which the same queries are asked; see `collect`."""
        first, *others = self.loads
        measured = collect(arms, query_ids, out, first, console)
        return {first: measured, **collect_under_loads(arms, query_ids, out, others, console)}

    def measured(
        self,
        arms: Sequence[Arm],
        answers: Mapping[int, Answers],
        judge: Judge,
        out: Path,
        hashes: Mapping[str, str],
    ) -> list[Result]:
        """See `measure_all`. `hashes` are those of the judgements."""
        return measure_all(arms, answers, judge, out, {**self.given, **hashes})
