"""Gain of rerankers over several first stages: a table and a plot, from the results that evaluations wrote.

python scripts/first_stages.py BM25=results/bm25 TAS-B=results/tas-b --plot results/first-stages.svg

`scripts/first_stages.sh` runs the evaluations and this. Each needs the first stage as its first system (`identity`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import matplotlib as mpl
import typer
from rerank_eval.measures import MAIN_MEASURE
from rerank_eval.report import format_p, markdown_table
from rerank_eval.statistics import Comparison, compare, holm
from rerank_eval.table import read_summary

from rerank.commands.run import run
from rerank.errors import CollectionError

mpl.use("Agg")
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rerank"})  # text stays text; the same file every time

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain in nDCG@10 of a system over a first stage.

    Attributes:
        before: mean of the first stage.
        after: mean of the system on the first stage's candidates.
        comparison: of the two, query by query.
        p: of the paired t-test, adjusted by Holm over all systems and first stages.
    """

    first_stage: str
    system: str
    before: float
    after: float
    comparison: Comparison
    p: float


@app.command()
def main(
    folders: Annotated[list[str], typer.Argument(help="NAME=FOLDER: a first stage, and the --out of its evaluation.")],
    plot: Annotated[Path, typer.Option(help="Image to write: the format is that of its suffix, .svg or .png.")],
) -> None:
    """Print the table in Markdown and draw the plot."""
    found = gains({name: read_values(Path(folder)) for name, folder in map(_split, folders)})
    draw(found, plot)
    print(table(found))


def read_values(folder: Path) -> dict[str, list[float]]:
    """nDCG@10 of every judged query by system, in the order of the evaluation. Raises: CollectionError."""
    return {system: _values(folder / system / "measures.json") for system in read_summary(folder).rows}


def gains(values: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Gain]:
    """The gain of every system but the first over every first stage, the worst first stage first.

    Args:
        values: first stage → system → nDCG@10 of every query; the first system is the first stage itself.

    Raises:
        CollectionError: an evaluation has no other system than the first stage.
    """
    found = list[tuple[str, str, float, float, Comparison]]()
    for first_stage, systems in values.items():
        (_, own), *others = systems.items()
        if not others:
            raise CollectionError(f"{first_stage} has one system; evaluate --ranker identity and another one")
        found += [(first_stage, name, fmean(own), fmean(row), compare(row, own)) for name, row in others]
    adjusted = holm([comparison.t_p for *_, comparison in found])
    return sorted((Gain(*row, p) for row, p in zip(found, adjusted, strict=True)), key=lambda gain: gain.before)


def table(found: Sequence[Gain]) -> str:
    """A Markdown table with one row per first stage, and three columns per system."""
    systems = list(dict.fromkeys(gain.system for gain in found))
    head = ["first stage", MAIN_MEASURE]
    for system in systems:
        head += [system, "gain, 95 %", "p"]
    rows = []
    for name, before in dict.fromkeys((gain.first_stage, gain.before) for gain in found):
        row = [name, f"{before:.4f}"]
        for system in systems:
            row += next(
                (_cells(gain) for gain in found if (gain.first_stage, gain.system) == (name, system)), ["–"] * 3
            )
        rows.append(row)
    return markdown_table(head, rows)


def draw(found: Sequence[Gain], path: Path) -> None:
    """Draws the gain, with its 95 % interval, against the quality of the first stage."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    axes.axhline(0, color="black", linewidth=0.8)
    systems = list(dict.fromkeys(gain.system for gain in found))
    for place, system in enumerate(systems):
        of_system = [gain for gain in found if gain.system == system]
        aside = 0.003 * (place - (len(systems) - 1) / 2)  # so that the intervals of two systems do not overlap
        axes.errorbar(
            [gain.before + aside for gain in of_system],
            [gain.comparison.difference for gain in of_system],
            yerr=[gain.comparison.interval[1] - gain.comparison.difference for gain in of_system],
            fmt="o",
            capsize=3,
            label=system,
        )
    top = axes.get_ylim()[1]
    for name, before in dict.fromkeys((gain.first_stage, gain.before) for gain in found):
        axes.annotate(name, (before, top), rotation=60, fontsize=8, annotation_clip=False)
    axes.set(xlabel=f"{MAIN_MEASURE} of the first stage", ylabel=f"gain in {MAIN_MEASURE}, 95 % interval")
    axes.legend()
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata=metadata)  # tight: names may be long
    plt.close(figure)


def _cells(gain: Gain) -> list[str]:
    low, high = gain.comparison.interval
    return [
        f"{gain.after:.4f}",
        f"{gain.comparison.difference:+.4f} ({low:+.4f} to {high:+.4f})",
        format_p(gain.p),
    ]


def _split(argument: str) -> tuple[str, str]:
    name, equals, folder = argument.partition("=")
    if not equals:
        raise CollectionError(f"{argument!r}: expected NAME=FOLDER")
    return name, folder


def _values(path: Path) -> list[float]:
    try:
        per_query = json.loads(path.read_text(encoding="utf-8"))["per_query"]
        return [per_query[query_id][MAIN_MEASURE] for query_id in sorted(per_query)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CollectionError(f"{path} cannot be read ({error!r}); run its evaluation again") from error


if __name__ == "__main__":
    run(app)
