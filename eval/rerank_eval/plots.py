"""Figures of the report: nDCG@10 against latency, and the per-query differences between systems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rerank.errors import ConfigError
from rerank_eval.measures import MAIN_MEASURE, paired_values
from rerank_eval.results import SystemResult
from rerank_eval.run_files import replaced_file
from rerank_eval.statistics import Comparison, Values, paired_differences

LATENCY_FILE, DIFFERENCES_FILE = "latency.png", "differences.png"


def draw(results: Sequence[SystemResult], out: Path) -> list[str]:
    """Writes the figures for which there are data into the folder `out`.

    Returns:
        The names of the files written.

    Raises:
        ConfigError: matplotlib is not installed, or a file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ConfigError("plots need matplotlib; install rerank-listwise[eval], or give --no-plots") from error
    mpl.use("Agg")
    drawn = []
    if any(result.efficiency for result in results):
        _latency(results, out / LATENCY_FILE)
        drawn.append(LATENCY_FILE)
    if len(results) > 1:
        _differences(results, out / DIFFERENCES_FILE)
        drawn.append(DIFFERENCES_FILE)
    return drawn


def _latency(results: Sequence[SystemResult], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    for result in results:
        if result.efficiency is None:
            axes.axhline(result.metrics.mean[MAIN_MEASURE], color="grey", linestyle=":", linewidth=1)
            axes.annotate(result.name, (0.01, result.metrics.mean[MAIN_MEASURE]), xycoords=("axes fraction", "data"))
            continue
        point = result.efficiency.p50_ms, result.metrics.mean[MAIN_MEASURE]
        tail_ms = result.efficiency.p95_ms - result.efficiency.p50_ms
        axes.errorbar(*point, xerr=np.array([[0.0], [tail_ms]]), marker="o", capsize=3)
        axes.annotate(result.name, point, xytext=(5, 5), textcoords="offset points")
    axes.set(xscale="log", xlabel="latency of a query in ms, p50 to p95", ylabel=MAIN_MEASURE)
    _save(figure, path)


def _differences(results: Sequence[SystemResult], path: Path) -> None:
    """One panel per system: its difference from the first system on every query that was asked, sorted."""
    from matplotlib import pyplot as plt

    reference, others = results[0], results[1:]
    figure, panels = plt.subplots(
        len(others), figsize=(7, 2.2 * len(others)), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for other, axes in zip(others, panels[:, 0], strict=True):
        differences = sorted(paired_differences(*paired_values(other.metrics, reference.metrics)), reverse=True)
        axes.bar(range(len(differences)), differences, width=1.0)
        axes.axhline(0, color="black", linewidth=0.5)
        axes.set(title=f"{other.name} - {reference.name}", ylabel=MAIN_MEASURE)
    panels[-1, 0].set(xlabel="queries, sorted by difference")
    _save(figure, path)


def draw_tuning(
    models: Sequence[str], means: Values, costs_ms: Sequence[float], chosen: int, comparison: Comparison, path: Path
) -> None:
    """Writes a figure of configurations by their cost. The first configuration is the first stage.

    Args:
        models, means, costs_ms: of each configuration.
        comparison: of the chosen configuration, on queries that the choice did not see, with the first stage.

    Raises:
        ConfigError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    axes.axhline(means[0], color="black", linestyle=":", label="first stage")
    for model in dict.fromkeys(models[1:]):
        numbers = [number for number, other in enumerate(models) if other == model]
        axes.scatter([costs_ms[each] for each in numbers], means[numbers], s=12, label=f"{model}, on all queries")
    (low, high), gain = comparison.interval, comparison.difference
    spread, label = [[gain - low], [high - gain]], "choice, on queries that it did not see, 95 %"
    axes.errorbar([costs_ms[chosen]], [means[0] + gain], yerr=spread, fmt="o", capsize=3, color="black", label=label)
    axes.set(xscale="symlog", xlim=(0, None), xlabel="ms of a processor per query", ylabel=MAIN_MEASURE)
    axes.legend()
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    with replaced_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
    plt.close(figure)
