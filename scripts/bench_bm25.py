"""Measures how fast the texts of a collection are indexed for BM25, up to the finished Lucene index.

python scripts/make_collection.py --passages 200000 --words 60 --out words-60 dl-passages cranfield
python scripts/bench_bm25.py --threads 1 words-60
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from rerank.collections import open_collection
from rerank.retrieval.bm25 import write_bm25


def main(
    collection: Annotated[Path, typer.Argument(help="Folder in BEIR layout.")],
    threads: Annotated[
        int, typer.Option(min=1, help="Indexing threads; this process gets as many processor cores.")
    ] = 1,
) -> None:
    """Index a collection in a temporary folder, and print the speed."""
    texts = [passage.text for passage in open_collection(str(collection)).passages()]
    words = sum(len(text.split()) for text in texts) / len(texts)
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    with tempfile.TemporaryDirectory(dir=collection.parent) as folder:
        for _ in range(2):  # the first time includes the start of the JVM
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            write_bm25(texts, Path(folder, "texts"), Path(folder, "bm25"), threads, lambda done: None)
            speed = len(texts) / (time.perf_counter() - wall_s)
            cpu_speed = len(texts) / (time.process_time() - cpu_s)
            print(f"{len(texts):,} passages of {words:.0f} words, {threads} threads: {speed:,.0f} passages/s, ", end="")
            print(f"{cpu_speed:,.0f} per second of processor time")


if __name__ == "__main__":
    typer.run(main)
