"""Measures the figures in eval/expected/ and writes them there, after a checkpoint was changed on purpose.

python -m scripts.reproduce.pin_figures --data DATA --work WORK [--only trec-dl-2019]

DATA holds trec-dl-2019, trec-dl-2021 and cranfield. WORK keeps indexes and results, so that a call that was stopped
resumes. Look at the differences before you commit them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rerank_eval.evaluation import run_evaluation
from rerank_eval.report import Report
from rerank_eval.settings import ORACLE, BeirSettings, TrecDLSettings

from rerank.collections import open_collection
from rerank.models.encoder import Encoder
from rerank.retrieval.build import build_index
from rerank.types import FirstStage

EXPECTED = Path(__file__).parents[2] / "eval" / "expected"


def expected(name: str) -> Any:
    """The content of eval/expected/NAME.json."""
    return json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))


def measured(name: str, data: Path, work: Path) -> tuple[dict[str, float], int]:
    """nDCG@10 of every entry in eval/expected/NAME.json, and the number of queries.

    Args:
        data: folder with the datasets.
        work: folder for indexes and results.
    """
    entries = list(expected(name)["nDCG@10"])
    if name.startswith("trec-dl"):
        (report,) = run_evaluation(
            TrecDLSettings(
                requests=[data / name / "requests.jsonl"],
                qrels=[str(data / name / "qrels.txt")],
                model=[entry for entry in entries if entry != ORACLE],
                precision="float32",
                out=work / name,
            )
        )
        return _figures(entries, report)
    collection = "pydoc" if name == "pydoc" else str(data / name)
    index = work / f"{name}-index"
    if not index.exists():
        build_index(open_collection(collection), index, Encoder())
    return measured_on_index(index, collection, entries, work / name)


def measured_on_index(index: Path, collection: str, entries: Sequence[str], work: Path) -> tuple[dict[str, float], int]:
    """nDCG@10 of entries FIRST_STAGE/RANKER over an index, and the number of queries."""
    figures: dict[str, float] = {}
    queries = 0
    for first_stage in dict.fromkeys(entry.partition("/")[0] for entry in entries):
        rankers = [entry.partition("/")[2] for entry in entries if entry.startswith(f"{first_stage}/")]
        (report,) = run_evaluation(
            BeirSettings(
                collection=[collection],
                index=[index],
                first_stage=FirstStage(first_stage),
                model=rankers,
                precision="float32",
                out=work / first_stage,
            )
        )
        means, queries = _figures(rankers, report)
        figures |= {f"{first_stage}/{ranker}": mean for ranker, mean in means.items()}
    return figures, queries


def _figures(rankers: Sequence[str], report: Report) -> tuple[dict[str, float], int]:
    means = {row.name: row.metrics.mean["nDCG@10"] for row in (*report.results, report.upper_bound)}
    return {ranker: means[ranker] for ranker in rankers}, len(report.upper_bound.metrics.per_query)


def main(
    data: Annotated[Path, typer.Option(help="Folder with trec-dl-2019, trec-dl-2021 and cranfield.")],
    work: Annotated[Path, typer.Option(help="Folder for indexes and results; use a new one for new checkpoints.")],
    only: Annotated[str, typer.Option(help="Name of one file of eval/expected/, without .json.")] = "",
) -> None:
    """Measure the figures and write them into eval/expected/*.json."""
    for path in sorted(EXPECTED.glob(f"{only or '*'}.json")):
        content = expected(path.stem)
        figures, content["queries"] = measured(path.stem, data, work)
        for name, figure in figures.items():
            print(f"{path.stem} {name}: {content['nDCG@10'][name]} before, {figure:.4f} now")
        content["nDCG@10"] = {name: round(figure, 4) for name, figure in figures.items()}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
