"""Measures what 100 passages cost through the bundled PE-Rank: from the index, as texts, and as texts that come again.

    python scripts/bench_texts.py [--passages 100] [--repeats 5]

The passages are docstrings of this Python. The three ways take turns in one process on one torch thread, after a
warm-up. New texts begin with a number, so that none of them came before. Prints the median and the range of the CPU
milliseconds of the process, and how often the time of the index each takes. It fails if texts that come again get other
scores.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, TypeAlias

import torch
import typer

from rerank.collections import open_collection
from rerank.commands.run import run
from rerank.config import ServiceConfig
from rerank.config.named import config_of_model
from rerank.models.encoder import Encoder
from rerank.reranker import Reranker
from rerank.retrieval.build import build_index
from rerank.types import CandidateSource, Passage, Ranking

QUERY = "parse a date string with a known format"
Candidates: TypeAlias = list[CandidateSource]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    passages: Annotated[int, typer.Option(min=2, help="Number of passages of a list.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="How often each way is timed.")] = 5,
) -> None:
    """Print the time of each way."""
    torch.set_num_threads(1)
    found = list(islice(open_collection("pydoc").passages(), passages))
    with tempfile.TemporaryDirectory() as folder, Reranker(config_with_index(Path(folder), found)) as reranker:
        report(measure(reranker, found, repeats))


def config_with_index(folder: Path, passages: Sequence[Passage]) -> ServiceConfig:
    """The bundled PE-Rank over an index of the passages, which is built here."""
    collection = folder / "docstrings"
    collection.mkdir()
    rows = [{"_id": passage.doc_id, "text": passage.text} for passage in passages]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (collection / "corpus.jsonl").write_text(lines, encoding="utf-8")
    build_index(open_collection(str(collection)), folder / "index", Encoder(device="cpu"))
    return config_of_model("pe-rank").model_copy(update={"index": folder / "index", "device": "cpu"})


def measure(reranker: Reranker, passages: Sequence[Passage], repeats: int) -> dict[str, list[float]]:
    """CPU milliseconds of the process for each way."""
    texts = [CandidateSource(passage.doc_id, passage.text) for passage in passages]
    numbers = iter(range(1_000_000))
    ways: dict[str, Callable[[], Candidates]] = {
        "from the index": lambda: [CandidateSource(passage.doc_id, in_index=True) for passage in passages],
        "texts": lambda: [CandidateSource(each.doc_id, f"{next(numbers)} {each.text}") for each in texts],
        "texts that come again": lambda: texts,
    }
    first = scores(reranker.rerank(QUERY, texts))
    times_ms: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way, candidates_of in ways.items():
            candidates = candidates_of()
            start_s = time.process_time()
            ranking = reranker.rerank(QUERY, candidates)
            if turn:  # the first one warms up
                times_ms[way].append((time.process_time() - start_s) * 1000)
            expected = len(passages) if way == "texts that come again" else 0
            assert ranking.trace.cached_vectors == expected, (way, ranking.trace.cached_vectors)
            assert way != "texts that come again" or scores(ranking) == first, "other scores for the same texts"
    return times_ms


def scores(ranking: Ranking) -> list[tuple[int, float]]:
    return [(item.position, item.score) for item in ranking.ranked]


def report(times_ms: dict[str, list[float]]) -> None:
    """Prints a table."""
    unit = median(times_ms["from the index"])
    print("| passages | CPU ms | range | times that of the index |\n| --- | ---: | ---: | ---: |")
    for way, each in times_ms.items():
        print(f"| {way} | {median(each):.0f} | {min(each):.0f} to {max(each):.0f} | {median(each) / unit:.1f} |")
    print("Texts that came again got the scores of the first time, bit by bit.")


if __name__ == "__main__":
    run(app)
