"""Options that the evaluation commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from rerank.errors import ConfigError
from rerank.types import StrategyKind
from rerank_eval.systems import BASELINES, SERVED

RankerOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--ranker",
        help=f"{', '.join(SERVED)} (served); {', '.join(BASELINES)} (beside the service). Repeatable; the others are "
        "compared with the first. identity measures the first stage.",
    ),
]
SystemOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--system",
        help="NAME=RANKER[/STRATEGY][:PATH], repeatable: a ranker under a name, with its own strategy and checkpoint; "
        "with --target, PATH is the name of a model there.",
    ),
]
ModelOption: TypeAlias = Annotated[
    str, typer.Option("--model", help="The one --ranker's checkpoint folder; with --target, the name of a model there.")
]
TemplateOption: TypeAlias = Annotated[
    str, typer.Option("--template", help="Name or file of the template for first and generation.")
]
EncoderOption: TypeAlias = Annotated[
    str, typer.Option("--encoder", help="Name or folder of the encoder, for PE-Rank and cosine; empty: the default.")
]
TargetOption: TypeAlias = Annotated[str, typer.Option("--target", help="HOST:PORT of a service; empty: start one.")]
StrategyOption: TypeAlias = Annotated[StrategyKind | None, typer.Option("--strategy", help="Default: the model's.")]
OutOption: TypeAlias = Annotated[
    Path, typer.Option("--out", help="Folder of the results; a run that was killed goes on in it.")
]
ConcurrencyOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--concurrency",
        help="Queries under way at once. 1,8,32: measured with 1, and served systems timed with 8 and 32, too.",
    ),
]
SeedOption: TypeAlias = Annotated[int, typer.Option("--seed", help="Of shuffles and of the permutation test.")]
MarginOption: TypeAlias = Annotated[
    float,
    typer.Option(
        "--margin", min=0.0, help="nDCG@10 by which a system may be worse and still pass as good; set before you look."
    ),
]
PlotsOption: TypeAlias = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw latency.png, differences.png.")]


def parse_loads(text: str) -> list[int]:
    """`1,8,32`. Raises: ConfigError when a part is no number above 0, or comes twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts) or len(set(parts)) != len(parts):
        raise ConfigError(f"--concurrency {text}: expected different numbers above 0, as in 1,8,32")
    return [int(part) for part in parts]
