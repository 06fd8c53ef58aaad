"""Collections in BEIR layout: a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, plain or gzip.

A file of passages or of queries may be named instead of its folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.queries import read_queries
from rerank.readers.rows import json_object, parsed_lines, passage_of_row
from rerank.types import Passage, Query
from rerank.util.files import sha256_of_files

#: Number of passages that `check_passages` reads: it takes milliseconds, and a wrong form shows in the first ones.
_CHECKED_PASSAGES = 100


def check_passages(folder: Path) -> None:
    """Raises: CollectionError unless the first 100 passages can be read."""
    for _ in islice(passages(folder), _CHECKED_PASSAGES):
        pass


def name_of(folder: Path) -> str:
    """The name of the folder, or of its file of passages if that has another name than the layout's."""
    named = folder.absolute()
    own = named.name.removesuffix(".gz").removesuffix(".jsonl")
    return own if named.is_file() and own != "corpus" else _folder(named).name


def corpus_file(folder: Path) -> Path:
    is_corpus = folder.is_file() and folder.name.removesuffix(".gz").endswith(".jsonl")
    return folder if is_corpus else _plain_or_gzip(folder / "corpus.jsonl")


def queries_file(folder: Path) -> Path:
    """The file of queries, or `folder` if it is a file."""
    return folder if folder.is_file() else _plain_or_gzip(folder / "queries.jsonl")


def qrels_file(folder: Path, split: str) -> Path:
    return _plain_or_gzip(_folder(folder) / "qrels" / f"{split}.tsv")


def _folder(path: Path) -> Path:
    return path.parent if path.is_file() else path


def passages(folder: Path) -> Iterator[Passage]:
    """The passages in file order, each with title and text joined by a space, as is usual for BEIR.

    Further fields of a line are ignored.

    Raises:
        CollectionError: the file cannot be read, or a line is not a JSON object in UTF-8 with id and text; the message
            names the line.
    """
    return (passage for _, passage in parsed_lines(corpus_file(folder), _passage))


def queries(folder: Path) -> list[Query]:
    """The queries of queries.jsonl, or of the file. Raises: CollectionError as `passages` does."""
    return read_queries(queries_file(folder))


def qrels(folder: Path, split: str = "test") -> list[Qrel]:
    """The judgements of qrels/SPLIT.tsv. Raises: CollectionError as `passages` does."""
    return read_qrels(qrels_file(folder, split))


def lines_of(folder: Path, doc_id: str) -> list[int]:
    """The 1-based numbers of the lines of corpus.jsonl with this id."""
    return [number for number, passage in parsed_lines(corpus_file(folder), _passage) if passage.doc_id == doc_id]


def fingerprint(folder: Path) -> str:
    """SHA-256 of the file of passages."""
    return sha256_of_files([corpus_file(folder)])


def _plain_or_gzip(path: Path) -> Path:
    """The path, or the same path with .gz at its end if only that file exists."""
    compressed = path.with_name(f"{path.name}.gz")
    return compressed if compressed.is_file() and not path.exists() else path


def _passage(line: str) -> Passage:
    doc_id, text, title = passage_of_row(json_object(line), ("_id",))
    return Passage(doc_id, f"{title} {text}".strip(), title=title.strip())
