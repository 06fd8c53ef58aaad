"""Mixes random samples of training lists into one file.

python -m scripts.reproduce.mix_lists --out twenty.jsonl --seed 1 labels.jsonl:150 fusion.jsonl:320

takes 150 lists of the first file and 320 of the second. FILE:SKIP:COUNT leaves out the first SKIP of the shuffled
lists, which another mix with the same seed has taken.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Annotated

import typer

from rerank.util.files import atomic_file


def main(
    samples: Annotated[list[str], typer.Argument(help="FILE:COUNT or FILE:SKIP:COUNT.")],
    out: Annotated[Path, typer.Option(help="JSONL file to write.")],
    seed: Annotated[int, typer.Option(help="Seed of samples and order.")] = 0,
) -> None:
    """Write the samples in random order."""
    lines = [line for sample in samples for line in _lines(sample, seed)]
    Random(seed).shuffle(lines)
    with atomic_file(out.absolute()) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
    print(f"{out}: {len(lines):,} lists")


def _lines(sample: str, seed: int) -> list[str]:
    """Raises: typer.BadParameter when the sample is not of the form above, or the file has too few lists."""
    name, *numbers = sample.split(":")
    if not (1 <= len(numbers) <= 2 and all(number.isdecimal() for number in numbers)):
        raise typer.BadParameter(f"{sample!r} is not FILE:COUNT or FILE:SKIP:COUNT")
    lines = Path(name).read_text(encoding="utf-8").splitlines(keepends=True)
    Random(f"{seed}:{Path(name).name}").shuffle(lines)
    count, skip = int(numbers[-1]), int(numbers[0]) if len(numbers) == 2 else 0
    if skip + count > len(lines):
        raise typer.BadParameter(f"{sample}: {skip + count} lists are asked for, {name} has {len(lines)}")
    return lines[skip : skip + count]


if __name__ == "__main__":
    typer.run(main)
