"""Collections in BEIR layout: a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, plain or gzip.

A file of passages or of queries may be given instead of the folder. Both may also have MS MARCO's format: id, tab,
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.queries import read_queries
from rerank.readers.rows import DOC_ID_FIELDS, TEXT_FIELDS, BadRow, json_object, parsed_lines, passage_of_row
from rerank.types import Passage, Query
from rerank.util.files import sha256_of_files

#: Number of passages that `check_passages` reads. That takes milliseconds, and a wrong format shows in the first ones.
_CHECKED_PASSAGES = 100
#: Suffixes of the files of passages and queries, the preferred one first.
_ENDINGS = (".jsonl", ".tsv")
#: Examples of lines, for error messages.
_JSON_LINE = '{"_id": "7", "title": "Fleas", "text": "An adult flea lives a hundred days."}; title may be left out'
_TAB_LINE = "7, tab, An adult flea lives a hundred days., or a first line with names, such as id, text and title"


def check_passages(folder: Path) -> None:
    """Raises: CollectionError unless the first 100 passages can be read."""
    for _ in islice(passages(folder), _CHECKED_PASSAGES):
        pass


def name_of(folder: Path) -> str:
    """The name of the collection: the folder's, or the name of the file of passages if that is not corpus.*."""
    named = folder.absolute()
    own = named.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".tsv")
    return own if named.is_file() and own != "corpus" else _folder(named).name


def corpus_file(folder: Path) -> Path:
    """The file of passages, which may be missing: the one in `folder`, or `folder` itself if it is such a file."""
    is_corpus = folder.is_file() and folder.name.removesuffix(".gz").endswith(_ENDINGS)
    return folder if is_corpus else _json_or_tsv(folder, "corpus")


def queries_file(folder: Path) -> Path:
    """The file of queries, or `folder` if it is a file."""
    return folder if folder.is_file() else _json_or_tsv(folder, "queries")


def qrels_file(folder: Path, split: str) -> Path:
    """The file of the judgements of a split, which may be missing."""
    return _plain_or_gzip(_folder(folder) / "qrels" / f"{split}.tsv")


def _folder(path: Path) -> Path:
    return path.parent if path.is_file() else path


def passages(folder: Path) -> Iterator[Passage]:
    """The passages in file order, each with title and text joined by a space, as is usual for BEIR.

    Further fields of a line are ignored. The first line of a tab-separated file may name the columns; without such a
    line the columns are id and text.

    Raises:
        CollectionError: the file cannot be read, or a line has no id and text in UTF-8. The message names the line and
            shows a correct one.
    """
    return (passage for _, passage in _located_passages(folder))


def queries(folder: Path) -> list[Query]:
    """The queries of the collection, see `queries_file`.

    Raises:
        CollectionError: see `passages`; or there is no file of queries.
    """
    if not (path := queries_file(folder)).exists():
        raise CollectionError(
            f"{folder} has no queries: there is no {path.name}, with lines of the form "
            f'{{"_id": "q1", "text": "how long does a flea live"}}, and no {path.stem}.tsv (query_id, tab, text)'
        )
    return read_queries(path)


def qrels(folder: Path, split: str = "test") -> list[Qrel]:
    """The judgements of qrels/SPLIT.tsv.

    Raises:
        CollectionError: see `passages`; or there is no file of this split.
    """
    if not (path := qrels_file(folder, split)).exists():
        found = sorted(other.name.partition(".")[0] for other in path.parent.glob("*.tsv*"))
        others = f"it has the splits {', '.join(found)}; " if found else ""
        raise CollectionError(
            f"{folder} has no judgements of the split {split!r}: there is no {path}; {others}a line is query_id, tab, "
            "doc_id, tab, relevance, or one of TREC: query_id 0 doc_id relevance"
        )
    return read_qrels(path)


def lines_of(folder: Path, doc_id: str) -> list[int]:
    """The 1-based numbers of the lines of corpus.jsonl with this id."""
    return [number for number, passage in _located_passages(folder) if passage.doc_id == doc_id]


def fingerprint(folder: Path) -> str:
    """SHA-256 of the file of passages."""
    return sha256_of_files([corpus_file(folder)])


def _located_passages(folder: Path) -> Iterator[tuple[int, Passage]]:
    """The passages with the numbers of their lines."""
    path = corpus_file(folder)
    parse = _TabFile().passage if path.name.removesuffix(".gz").endswith(".tsv") else _passage
    return ((number, passage) for number, passage in parsed_lines(path, parse) if passage is not None)


def _json_or_tsv(folder: Path, name: str) -> Path:
    """The first existing file, plain or gzip, with one of the suffixes; if none exists, the path with the first one."""
    paths = [_plain_or_gzip(folder / f"{name}{ending}") for ending in _ENDINGS]
    return next((path for path in paths if path.exists()), paths[0])


def _plain_or_gzip(path: Path) -> Path:
    """The path, or the same path with .gz at its end if only that file exists."""
    compressed = path.with_name(f"{path.name}.gz")
    return compressed if compressed.is_file() and not path.exists() else path


def _passage(line: str) -> Passage:
    """Raises: BadRow, with a line that can be read."""
    try:
        return _passage_of(json_object(line))
    except BadRow as error:
        raise BadRow(f"{error}; expected a line as {_JSON_LINE}") from error


def _passage_of(row: Mapping[str, Any]) -> Passage:
    """Raises: BadRow. A field `id` beside an `_id` is one of the further fields."""
    id_names = next(([name] for name in ("_id", *DOC_ID_FIELDS) if name in row), DOC_ID_FIELDS)
    doc_id, text, title = passage_of_row(row, id_names)
    return Passage(doc_id, f"{title} {text}".strip(), title=title.strip())


class _TabFile:
    """A tab-separated file, whose first line may name the columns."""

    def __init__(self) -> None:
        self._columns: Sequence[str] = ()

    def passage(self, line: str) -> Passage | None:
        """The passage in a line; None for the names of the columns. Raises: BadRow."""
        values = line.split("\t")
        if not self._columns:
            names = [value.strip().lower() for value in values]
            is_header = not {*DOC_ID_FIELDS}.isdisjoint(names) and not {*TEXT_FIELDS}.isdisjoint(names)
            self._columns = names if is_header else ("_id", "text")
            if is_header:
                return None
        if len(values) != len(self._columns):
            raise BadRow(
                f"has {len(values)} columns, and not {', '.join(self._columns)}; expected a line as {_TAB_LINE}"
            )
        if not values[self._columns.index(next(name for name in DOC_ID_FIELDS if name in self._columns))].strip():
            raise BadRow(f"has no id; expected a line as {_TAB_LINE}")
        return _passage_of(dict(zip(self._columns, values, strict=True)))
