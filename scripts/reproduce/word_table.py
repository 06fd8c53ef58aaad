"""Counts the words of passages, for the default's lexical signal: rerank/checkpoints/words.txt.

    python -m scripts.reproduce.word_table --requests DATA/trec-dl-2021/requests.jsonl \\
        --requests DATA/trec-dl-2021/splade-pp.jsonl --requests DATA/trec-dl-2022/requests.jsonl \\
        --requests DATA/trec-dl-2022/splade-pp.jsonl --out rerank/checkpoints/words.txt

The words of the passages are counted, and nothing else is read: no query, and no judgement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rerank.rankers.lexical import count_words, write_word_table
from rerank.readers.candidates import read_requests

_MAX_BYTES = 64 * 1024


def main(
    requests: Annotated[list[Path], typer.Option(help="Request file, whose passages are counted; several times.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    least: Annotated[int, typer.Option(min=1, help="Words of fewer passages are left out.")] = 10,
) -> None:
    """Count in how many passages each word occurs."""
    texts = (passage.text for path in requests for request in read_requests(path) for passage in request.candidates)
    table = count_words(texts, least)
    write_word_table(table, out)
    size = out.stat().st_size
    print(f"{out}: {len(table.frequencies):,} words of {table.passages:,} passages in {size:,} bytes")
    if size > _MAX_BYTES:
        print(f"That is more than {_MAX_BYTES:,} bytes, which every installation loads; raise --least {least}.")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
