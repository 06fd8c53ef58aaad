"""Compares the losses of FIRST: same base, lists, windows and steps, three seeds each; nDCG@10 of held-out windows.

python scripts/loss_study.py --base runs/mixed/final --lists lists/fusion.jsonl --eval-lists lists/held-out.jsonl \
    --out loss-study --steps 40 --batch-size 6 --window-size 5 --passage-tokens 24
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import typer
from rerank_training.arguments import RunArguments
from rerank_training.train_first import FirstArguments, train_first
from rich.table import Table

from rerank.commands.display import plain_console
from rerank.manifest import read_manifest

#: Name → objective, rank loss and the weight that the rank loss has beside the language model's (FIRST's:
#: 10).
LOSSES = {
    "LM": ("lm", "weighted-ranknet", 0.0),
    "RankNet": ("rank", "ranknet", 1.0),
    "weighted RankNet": ("rank", "weighted-ranknet", 1.0),
    "LambdaRank": ("rank", "lambdarank", 1.0),
    "ListNet": ("rank", "listnet", 1.0),
    "joint": ("joint", "weighted-ranknet", 10.0),
}
#: Student's t for a two-sided 95 % interval of 2, 3, 4 and 5 runs.
_T95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}


def main(
    base: Annotated[str, typer.Option(help="Causal LM to start from.")],
    lists: Annotated[Path, typer.Option(help="Training lists.")],
    eval_lists: Annotated[Path, typer.Option(help="Held-out lists.")],
    out: Annotated[
        Path, typer.Option(help="Folder for runs, loss-study.json and loss-study.png; goes on if it exists.")
    ],
    steps: int = 60,
    batch_size: int = 16,
    learning_rate: float = 3e-4,
    window_size: int = 4,
    passage_tokens: int = 20,
    template: str = "first_small",
    seeds: Annotated[int, typer.Option(min=2, max=5)] = 3,
) -> None:
    """Train with every loss and seed, and compare."""
    measured: dict[str, list[float]] = {}
    for name, (objective, rank_loss, rank_weight) in LOSSES.items():
        for seed in range(seeds):
            run = out / f"{name.replace(' ', '-').lower()}-{seed}"
            arguments = FirstArguments(
                lists=str(lists),
                base=base,
                eval_lists=str(eval_lists),
                template=template,
                objective=objective,  # type: ignore[arg-type]
                rank_loss=rank_loss,
                rank_weight=rank_weight,
                window_size=window_size,
                passage_tokens=passage_tokens,
                shuffled_share=1.0,
                freeze_token_embeddings=True,
            )
            settings = RunArguments(
                output_dir=str(run),
                seed=seed,
                max_steps=steps,
                per_device_train_batch_size=batch_size,
                learning_rate=learning_rate,
                warmup_steps=10,
                save_steps=steps,
                eval_steps=steps,
                lr_scheduler_type="constant_with_warmup",
                report_to=["none"],
            )
            measured.setdefault(name, []).append(_result(run, arguments, settings))
    _write(out, measured)


def _result(run: Path, arguments: FirstArguments, settings: RunArguments) -> float:
    """nDCG@10 of a run, trained now if it was not before."""
    folder = run / "final"
    if not folder.is_dir():
        train_first(arguments, settings)
    manifest = read_manifest(folder)
    if manifest is None:
        raise RuntimeError(f"{folder} has no manifest; this is a bug")
    return manifest.metrics["nDCG@10"]


def _write(out: Path, measured: dict[str, list[float]]) -> None:
    """Table, JSON and plot."""
    half = {name: _T95[len(runs)] * stdev(runs) / len(runs) ** 0.5 for name, runs in measured.items()}
    table = Table("loss", "nDCG@10", "± 95 %", "runs")
    for name, runs in measured.items():
        table.add_row(name, f"{mean(runs):.3f}", f"{half[name]:.3f}", "  ".join(f"{run:.3f}" for run in runs))
    plain_console().print(table)
    (out / "loss-study.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    axes.errorbar(
        list(measured), [mean(runs) for runs in measured.values()], yerr=list(half.values()), fmt="o", capsize=4
    )
    axes.set_ylabel("nDCG@10, held-out windows")
    axes.tick_params(axis="x", rotation=20)
    figure.savefig(out / "loss-study.png", dpi=120)


if __name__ == "__main__":
    typer.run(main)
