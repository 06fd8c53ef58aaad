"""Options that several trials take."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Work: TypeAlias = Annotated[
    Path, typer.Option(help="Folder for the index of the trials and for what a soak resumes from.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of texts, intervals and faults.")]
WORK = Path("build/trials")
