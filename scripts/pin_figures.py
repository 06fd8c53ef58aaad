"""Measures the figures in eval/expected/ and writes them there: after a checkpoint has changed on purpose.

python scripts/pin_figures.py --data DATA --work WORK [--only trec-dl-2019]

DATA holds trec-dl-2019, trec-dl-2021 and cranfield; WORK keeps indexes and answers, so that a call that was stopped
goes on. Look at the difference before you keep it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rerank_eval import beir, trec_dl
from typer.testing import CliRunner

from rerank.collections import open_collection
from rerank.models.encoder import Encoder
from rerank.retrieval.index import build_index

EXPECTED = Path(__file__).parents[1] / "eval" / "expected"


def expected(name: str) -> Any:
    """The file of that name."""
    return json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))


def measured(name: str, data: Path, work: Path) -> tuple[dict[str, float], int]:
    """nDCG@10 by what the file of that name lists (systems, or systems behind a first stage), and how many queries.

    Args:
        data: folder with the data sets.
        work: folder for indexes and answers.
    """
    listed = list(expected(name)["nDCG@10"])
    if name.startswith("trec-dl"):
        files = ["--requests", str(data / name / "requests.jsonl"), "--qrels", str(data / name / "qrels.txt")]
        return _of_systems(trec_dl.app, listed, files, work / name)
    collection = "pydoc" if name == "pydoc" else str(data / name)
    index = work / f"{name}-index"
    if not index.exists():
        build_index(open_collection(collection), index, Encoder(), hnsw=False, report=lambda *_: None)
    return measured_over(index, collection, listed, work / name)


def measured_over(index: Path, collection: str, listed: Sequence[str], work: Path) -> tuple[dict[str, float], int]:
    """Of entries FIRST_STAGE/RANKER over an index."""
    found: dict[str, float] = {}
    queries = 0
    for first_stage in dict.fromkeys(entry.partition("/")[0] for entry in listed):
        rankers = [entry.partition("/")[2] for entry in listed if entry.startswith(f"{first_stage}/")]
        files = ["--collection", collection, "--index", str(index), "--first-stage", first_stage]
        means, queries = _of_systems(beir.app, rankers, files, work / first_stage)
        found |= {f"{first_stage}/{ranker}": mean for ranker, mean in means.items()}
    return found, queries


def _of_systems(
    app: typer.Typer, rankers: Sequence[str], files: Sequence[str], out: Path
) -> tuple[dict[str, float], int]:
    named = [argument for ranker in rankers for argument in ("--ranker", ranker)]
    done = CliRunner().invoke(app, [*files, *named, "--no-plots", "--out", str(out)])
    if done.exception:
        raise done.exception
    found = {ranker: _measures(out if len(rankers) == 1 else out / ranker) for ranker in rankers}
    return {ranker: row["mean"]["nDCG@10"] for ranker, row in found.items()}, len(found[rankers[0]]["per_query"])


def _measures(folder: Path) -> Any:
    return json.loads((folder / "measures.json").read_text(encoding="utf-8"))


def main(
    data: Annotated[Path, typer.Option(help="Folder with trec-dl-2019, trec-dl-2021 and cranfield.")],
    work: Annotated[Path, typer.Option(help="Folder for indexes and answers; a new one for new checkpoints.")],
    only: Annotated[str, typer.Option(help="One of the files, without .json.")] = "",
) -> None:
    """Measure and write eval/expected/*.json."""
    for path in sorted(EXPECTED.glob(f"{only or '*'}.json")):
        figures = expected(path.stem)
        values, figures["queries"] = measured(path.stem, data, work)
        for name, value in values.items():
            print(f"{path.stem} {name}: {figures['nDCG@10'][name]} before, {value:.4f} now")
        figures["nDCG@10"] = {name: round(value, 4) for name, value in values.items()}
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
