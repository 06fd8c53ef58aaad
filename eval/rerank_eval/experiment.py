"""Asks every system every query, keeps the answers as they come, and writes what they are worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ir_measures import Measure, Qrel
from rich.console import Console
from rich.progress import Progress

from rerank_eval.answers import Answer, AnswerFile, Reply
from rerank_eval.efficiency import Efficiency, efficiency
from rerank_eval.measures import Report, Run, measure
from rerank_eval.output import write

TRACE_FILE = "trace.jsonl"

#: By arm, in the order of the queries.
Answers: TypeAlias = dict[str, list[Answer]]


@dataclass(frozen=True, slots=True)
class Arm:
    """A system in one order of its candidates: one row of the report.

    Attributes:
        settings: all that decides the answers.
        ask: query_id → the answer; called from several threads.
        is_timed: asked again under every further load.
    """

    name: str
    settings: Mapping[str, object]
    ask: Callable[[str], Reply]
    is_timed: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What an arm's answers are worth. `costs`, by queries under way at once; empty where nothing was asked."""

    name: str
    report: Report
    costs: Mapping[int, Efficiency] = field(default_factory=dict)

    @property
    def efficiency(self) -> Efficiency | None:
        """Of the answers that were measured."""
        return next(iter(self.costs.values()), None)


@dataclass(frozen=True, slots=True)
class Judge:
    """How runs are measured, and what is left out of them before."""

    measures: Sequence[Measure]
    qrels: Sequence[Qrel]
    prepare: Callable[[Run], Run] = lambda run: run

    def report(self, run: Run) -> Report:
        return measure(self.measures, self.qrels, self.prepare(run))


def folder_of(arm: Arm, arms: Sequence[Arm], out: Path) -> Path:
    """`out` itself for a single arm, else a folder in it."""
    return out if len(arms) == 1 else out / arm.name


def collect(arms: Sequence[Arm], query_ids: Sequence[str], out: Path, concurrency: int, console: Console) -> Answers:
    """All answers of all arms, by arm, in the order of the queries. Those that a killed run left are not asked again.

    Raises:
        ConfigError: `out` holds answers that were given under other settings.
        RerankError: a service refused; what was answered before is kept.
    """
    return _collect(arms, query_ids, [folder_of(arm, arms, out) / TRACE_FILE for arm in arms], concurrency, console)


def collect_under_loads(
    arms: Sequence[Arm], query_ids: Sequence[str], out: Path, loads: Sequence[int], console: Console
) -> dict[int, Answers]:
    """The same queries once more for each load, of those arms that are timed, for the times alone; by load, by arm.

    Args:
        loads: queries under way at once.

    Raises:
        As `collect` does.
    """
    timed, collected = [arm for arm in arms if arm.is_timed], {}
    for load in loads:
        files = [folder_of(arm, arms, out) / f"trace-{load}.jsonl" for arm in timed]
        collected[load] = _collect(timed, query_ids, files, load, console, f", {load} at once")
    return collected


def _collect(
    arms: Sequence[Arm], query_ids: Sequence[str], paths: Sequence[Path], load: int, console: Console, how: str = ""
) -> Answers:
    files = [AnswerFile(path, {**arm.settings, "load": load}) for arm, path in zip(arms, paths, strict=True)]
    with Progress(console=console, disable=not console.is_terminal) as progress:
        for arm, file in zip(arms, files, strict=True):
            kept = len(file.answers)
            if kept:
                console.print(f"{arm.name}{how}: {kept} of {len(query_ids)} queries were answered before")
            task = progress.add_task(f"{arm.name}{how}", total=len(query_ids), completed=kept)
            todo = [query_id for query_id in query_ids if query_id not in file.answers]
            _ask_all(arm, todo, file, load, lambda task=task: progress.advance(task))  # type: ignore[misc]
            file.finish(query_ids)
    return {arm.name: list(file.answers.values()) for arm, file in zip(arms, files, strict=True)}


def _ask_all(
    arm: Arm, query_ids: Sequence[str], file: AnswerFile, concurrency: int, advance: Callable[[], None]
) -> None:
    with ThreadPoolExecutor(concurrency) as threads:
        futures = [threads.submit(_ask, arm, query_id, file) for query_id in query_ids]
        try:
            for future in as_completed(futures):
                future.result()
                advance()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _ask(arm: Arm, query_id: str, file: AnswerFile) -> None:
    """Keeps the answer at once: another query that fails must not lose it."""
    begun = time.perf_counter()
    reply = arm.ask(query_id)
    file.add(Answer(query_id, (time.perf_counter() - begun) * 1000, time.time(), reply))


def measure_all(
    arms: Sequence[Arm],
    answers: Mapping[int, Answers],
    judge: Judge,
    out: Path,
    settings: Mapping[str, object],
) -> list[Result]:
    """Measures every arm by the first of `answers`, which are by load, and writes its run.trec and measures.json."""
    first, results = next(iter(answers.values())), []
    for arm in arms:
        run = judge.prepare({answer.query_id: answer.reply.docs for answer in first[arm.name]})
        report = judge.report(run)
        write(folder_of(arm, arms, out), run, report, {**settings, **arm.settings})
        costs = {load: efficiency(given[arm.name]) for load, given in answers.items() if arm.name in given}
        results.append(Result(arm.name, report, {load: cost for load, cost in costs.items() if cost}))
    return results
