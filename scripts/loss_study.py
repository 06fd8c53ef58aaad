"""Compares the losses of FIRST by held-out nDCG@10, with the same base, lists, windows and steps, and three seeds each.

python scripts/loss_study.py --base runs/mixed/final --lists lists/fusion.jsonl --eval-lists lists/held-out.jsonl \
    --out loss-study --steps 40 --batch-size 6 --window-size 5 --passage-tokens 24
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import typer
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import ObjectiveName
from rerank_training.first.training import train_first
from rerank_training.trainer.arguments import RunArguments
from rich.table import Table

from rerank.commands.console import PlainConsole
from rerank.commands.flags import flags
from rerank.manifest import read_manifest

#: Name → objective, ranking loss, and the weight of the ranking loss beside the language model's (10, as in FIRST).
LOSSES: dict[str, tuple[ObjectiveName, str, float]] = {
    "LM": ("lm", "weighted-ranknet", 0.0),
    "RankNet": ("rank", "ranknet", 1.0),
    "weighted RankNet": ("rank", "weighted-ranknet", 1.0),
    "LambdaRank": ("rank", "lambdarank", 1.0),
    "ListNet": ("rank", "listnet", 1.0),
    "joint": ("joint", "weighted-ranknet", 10.0),
}
#: Number of runs → quantile of Student's t for a two-sided 95 % interval.
_T95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """Settings that all runs of the study share."""

    base: Annotated[
        str, typer.Option(help="Causal language model to start from: a folder, or a name on the Hugging Face hub.")
    ]
    lists: Annotated[Path, typer.Option(help="Training lists, as build-lists writes them.")]
    eval_lists: Annotated[Path, typer.Option(help="Held-out lists.")]
    out: Annotated[
        Path, typer.Option(help="Folder for the runs, loss-study.json and loss-study.png; an existing one is resumed.")
    ]
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 60
    batch_size: Annotated[int, typer.Option(help="Windows per step.")] = 16
    learning_rate: Annotated[float, typer.Option(help="Learning rate after the warm-up of 10 steps.")] = 3e-4
    window_size: Annotated[int, typer.Option(help="Passages in a window.")] = 4
    passage_tokens: Annotated[int, typer.Option(help="Tokens to which passages are truncated.")] = 20
    template: Annotated[str, typer.Option(help="Prompt template: the name of one of ours, or a YAML file.")] = (
        "first_small"
    )
    seeds: Annotated[int, typer.Option(min=2, max=5, help="Number of runs with each loss.")] = 3


def main(settings: StudySettings) -> None:
    """Train with every loss and seed, and compare."""
    measured = {name: [_measure(settings, name, seed) for seed in range(settings.seeds)] for name in LOSSES}
    _write(settings.out, measured)


def _measure(settings: StudySettings, name: str, seed: int) -> float:
    """nDCG@10 of a run, which is trained unless its result exists."""
    folder = settings.out / f"{name.replace(' ', '-').lower()}-{seed}"
    if not (folder / "final").is_dir():
        train_first(_arguments(settings, name), _run_arguments(settings, folder, seed))
    manifest = read_manifest(folder / "final")
    if manifest is None:
        raise RuntimeError(f"{folder / 'final'} has no manifest; this is a bug")
    return manifest.metrics["nDCG@10"]


def _arguments(settings: StudySettings, name: str) -> FirstArguments:
    objective, rank_loss, rank_weight = LOSSES[name]
    return FirstArguments(
        lists=str(settings.lists),
        base=settings.base,
        eval_lists=str(settings.eval_lists),
        template=settings.template,
        objective=objective,
        rank_loss=rank_loss,
        rank_weight=rank_weight,
        window_size=settings.window_size,
        passage_tokens=settings.passage_tokens,
        shuffled_share=1.0,
        freeze_token_embeddings=True,
    )


def _run_arguments(settings: StudySettings, folder: Path, seed: int) -> RunArguments:
    return RunArguments(
        output_dir=str(folder),
        seed=seed,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup_steps=10,
        save_steps=settings.steps,
        eval_steps=settings.steps,
        lr_scheduler_type="constant_with_warmup",
        report_to=["none"],
    )


def _write(out: Path, measured: dict[str, list[float]]) -> None:
    """Prints a table and writes the JSON file and the plot."""
    half = {name: _T95[len(runs)] * stdev(runs) / len(runs) ** 0.5 for name, runs in measured.items()}
    table = Table("loss", "nDCG@10", "± 95 %", "runs")
    for name, runs in measured.items():
        table.add_row(name, f"{mean(runs):.3f}", f"{half[name]:.3f}", "  ".join(f"{run:.3f}" for run in runs))
    PlainConsole().print(table)
    (out / "loss-study.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    axes.errorbar(
        list(measured), [mean(runs) for runs in measured.values()], yerr=list(half.values()), fmt="o", capsize=4
    )
    axes.set_ylabel("nDCG@10, held-out windows")
    axes.tick_params(axis="x", rotation=20)
    figure.savefig(out / "loss-study.png", dpi=120)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(flags(StudySettings)(main))
    app()
