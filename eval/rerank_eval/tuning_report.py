"""Output of `rerank tune`: the settings of a service, and a report that says whether reranking helps."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import yaml
from rich.console import Console

from rerank.config import ModelConfig, ServiceConfig
from rerank_eval.measures import MAIN_MEASURE
from rerank_eval.report import format_p, markdown_table
from rerank_eval.run_files import write_text
from rerank_eval.statistics import Comparison, Values
from rerank_eval.tune_settings import TuneSettings

_SIGNIFICANT = 0.05
_NOTE = (
    "Each gain is slightly optimistic, because its weights were chosen on the same queries. folds: the number of parts "
    "of the queries for which the other parts chose this ranking, with any weights. They choose the cheapest ranking "
    "within one standard error of the best one, with its default weights if those are within it, too."
)
#: Names of the models in service.yaml.
_NAME, _PRERANKER = "tuned", "tuned-preranker"


class Choice(NamedTuple):
    """A configuration.

    Attributes:
        model: the model that orders last; empty: the order is the first stage's.
        preranker: the model that orders before it; empty: there is none.
        depth: number of passages that the model reads; 0: all.
        is_default: a fusion has the weights of its settings.
        weight: of the scores before the model.
        sparse_weight: of the sparse score in a fusion; None for any other model.
    """

    model: str = ""
    preranker: str = ""
    depth: int = 0
    is_default: bool = False
    weight: float = 0.0
    sparse_weight: float | None = None

    def __str__(self) -> str:
        if not self.model:
            return "first stage"
        before = f"{self.preranker}, then " if self.preranker else ""
        depth = f" over the first {self.depth}" if self.depth else ""
        sparse = "" if self.sparse_weight is None else f", sparse_weight {self.sparse_weight:g}"
        default = " (default)" if self.is_default else ""
        return f"{before}{self.model}{depth}, first_stage_weight {self.weight:g}{sparse}{default}"


@dataclass(frozen=True, slots=True)
class Tuning:
    """All configurations, the first stage first, and the one that was chosen.

    Attributes:
        values: (configurations, queries) nDCG@10.
        costs_ms: milliseconds of the processors per query, of each configuration.
        chosen: the configuration that all queries choose.
        held_out: (queries,) nDCG@10 by configurations that were chosen on other queries.
        of_folds: the configuration that each fold chose.
        comparison: `held_out` compared with the first stage.
        p: of the gain, see `p_of_gain`.
        notes: sentences about the judgements.
    """

    choices: Sequence[Choice]
    values: Values
    costs_ms: Sequence[float]
    chosen: int
    held_out: Values
    of_folds: Sequence[int]
    comparison: Comparison
    p: float
    notes: Sequence[str]

    @property
    def result(self) -> Choice:
        """The choice, if its gain on queries that it did not see is significant; otherwise the first stage."""
        is_significant = self.p < _SIGNIFICANT and self.comparison.interval[0] > 0
        return self.choices[self.chosen] if is_significant else Choice()

    @property
    def verdict(self) -> str:
        """The verdict in words: does reranking help?"""
        c, (low, high) = self.comparison, self.comparison.interval
        if not c.wins + c.losses:
            return f"Reranking was not shown to help: by {c.queries} queries, no fold chose it over the first stage."
        figures = (
            f"on queries that the choice did not see, {MAIN_MEASURE} is {self.held_out.mean():.3f}, and that of the "
            f"first stage {self.values[0].mean():.3f} ({c.difference:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}, "
            f"p {format_p(self.p)}, {c.queries} queries)."
        )
        if self.result.model:
            return f"Reranking helps: {figures} It costs {self.costs_ms[self.chosen]:,.0f} ms of a processor per query."
        limit = f"With {c.queries} queries, only gains of {c.minimum_detectable:.3f} or more can be detected."
        return f"Reranking was not shown to help: {figures} {limit}"


def write_tuning(
    tuning: Tuning, config: ServiceConfig, models: Mapping[str, ModelConfig], settings: TuneSettings, console: Console
) -> None:
    """Writes service.yaml and report.md into the folder of the settings, and prints table and verdict.

    Raises:
        ConfigError: a file cannot be written.
    """
    request = f"search with first_stage {settings.first_stage.value} and depth {settings.depth}"
    if settings.requests:
        request = f"send up to {settings.depth} candidates in the order of your first stage"
    comment = textwrap.wrap(
        f"Written by `rerank tune` for the requests that it measured: {request}. {tuning.verdict}", 110
    )
    content = service_settings(config, models, tuning.result, settings.depth)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_text(settings.out / "service.yaml", "".join(f"# {line}\n" for line in comment) + text)
    table = markdown_table(("ranking", MAIN_MEASURE, "gain", "ms of a processor", "folds"), list(_rows(tuning)))
    notes = (*tuning.notes, _NOTE)
    write_text(
        settings.out / "report.md", "\n\n".join(["# Does reranking help?", tuning.verdict, table, *notes]) + "\n"
    )
    for line in (table, *notes, tuning.verdict, f"{settings.out / 'service.yaml'}: {tuning.result}"):
        console.print(line, soft_wrap=True)


def service_settings(
    config: ServiceConfig, models: Mapping[str, ModelConfig], choice: Choice, depth: int
) -> dict[str, object]:
    """The settings of a service whose default is the choice: those of `config`, and the models that it needs.

    Args:
        models: by name, as they were measured.
        depth: of the lists, which a model that reads whole lists must hold in one window.
    """
    tuned: list[dict[str, object]] = []
    if choice.model:
        model = models[choice.model]
        tuned.append(_entry(model, _NAME, choice.depth, depth))
        if "interpolation" in type(model).model_fields:
            tuned[0]["interpolation"] = {"first_stage_weight": choice.weight}
        if choice.sparse_weight is not None:
            tuned[0]["sparse_weight"] = choice.sparse_weight
    if choice.preranker:
        preranker = models[choice.preranker]
        tuned[0] |= {"strategy": "cascade", "preranker": _PRERANKER}
        tuned.append(_entry(preranker, _PRERANKER, 0, depth))
    identity = {"name": "identity", "ranker": "identity"}
    kept = config.model_dump(mode="json", exclude_unset=True)
    own = [model for model in kept.pop("models", []) if model["name"] not in (_NAME, _PRERANKER, "identity")]
    return kept | {"models": [*tuned, *own, identity] if tuned else [identity, *own]}


def _entry(model: ModelConfig, name: str, reads: int, depth: int) -> dict[str, object]:
    """A model as it was measured, under another name; if it `reads` 0, it reads whole lists of the `depth`."""
    given = model.model_dump(mode="json", exclude_unset=True, exclude={"stride", "preranker"}) | {"name": name}
    # A default that is large enough is left out: a smaller one of the checkpoint is then in its place.
    return given | ({"window_size": reads or depth} if reads or depth > model.window_size else {})


def _rows(tuning: Tuning) -> Iterator[tuple[str, ...]]:
    """For each model, preranker and depth the best weights, and for a fusion its default ones; best first."""
    means = tuning.values.mean(axis=1)
    best: dict[tuple[str, str, int, bool], int] = {}
    for number in sorted(range(len(means)), key=lambda number: -means[number]):
        best.setdefault(tuning.choices[number][:4], number)
    folds = Counter(tuning.choices[number][:4] for number in tuning.of_folds)
    for key, number in best.items():
        mean, cost_ms = float(means[number]), tuning.costs_ms[number]
        figures = f"{mean:.4f}", f"{mean - means[0]:+.4f}", f"{cost_ms:,.0f}", str(folds[key])
        yield str(tuning.choices[number]), *figures
