"""Makes a large collection in BEIR layout, to measure indexing and retrieval: seeded mixtures of given passages.

python -m scripts.reproduce.requests_to_collection --out dl-passages requests-2021.jsonl requests-2022.jsonl
python -m scripts.bench.make_collection --passages 1000000 --out million dl-passages cranfield

A passage is a run of words of one source passage followed by a run of words of another one. queries.jsonl has queries
that are a few consecutive words of a passage. The same arguments give the same files.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, TextIO

import typer

from rerank.collections import beir
from rerank.files import atomic_folder

_QUERY_WORDS = range(3, 9)


def main(
    sources: Annotated[list[Path], typer.Argument(help="Collections in BEIR layout.")],
    out: Annotated[Path, typer.Option(help="Folder to create, with corpus.jsonl and queries.jsonl.")],
    passages: Annotated[int, typer.Option(min=1, help="Number of passages.")],
    words: Annotated[int, typer.Option(min=4, help="Mean length of a passage; lengths vary by half of it.")] = 25,
    queries: Annotated[int, typer.Option(min=0, help="Number of queries.")] = 1000,
    seed: Annotated[int, typer.Option(help="Another seed gives other passages.")] = 0,
) -> None:
    """Write a collection of mixed passages."""
    texts = [words_of for source in sources for words_of in _words_of_passages(source) if len(words_of) >= words // 2]
    if not texts:
        raise typer.BadParameter(f"no source passage has {words // 2} words or more; use fewer --words")
    random = Random(seed)
    with atomic_folder(out) as folder:
        with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
            for number in range(passages):
                _write(corpus, {"_id": f"p{number}", "title": "", "text": " ".join(_mixed(texts, words, random))})
        with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
            for number in range(queries):
                query = _run(random.choice(texts), random.choice(_QUERY_WORDS), random)
                _write(file, {"_id": f"q{number}", "text": " ".join(query)})
    print(f"{out}: {passages:,} passages and {queries:,} queries from {len(texts):,} source passages")


def _words_of_passages(folder: Path) -> Iterator[list[str]]:
    return (passage.text.split() for passage in beir.passages(beir.checked_folder(str(folder))))


def _mixed(texts: Sequence[Sequence[str]], mean_words: int, random: Random) -> list[str]:
    """Runs of words of two passages, together between half and one and a half times `mean_words` long."""
    length = random.randint(mean_words // 2, mean_words + mean_words // 2)
    first = random.randint(1, length - 1)
    return [*_run(random.choice(texts), first, random), *_run(random.choice(texts), length - first, random)]


def _run(text: Sequence[str], length: int, random: Random) -> Sequence[str]:
    """Up to `length` consecutive words from a random place of a text."""
    start = random.randint(0, max(0, len(text) - length))
    return text[start : start + length]


def _write(file: TextIO, row: dict[str, str]) -> None:
    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    typer.run(main)
