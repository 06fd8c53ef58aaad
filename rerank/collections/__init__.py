"""Collections of passages, which `rerank index` reads. Some have queries and judgements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Collection as Ids
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rerank.collections import beir, pydoc
from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel, with_known_ids
from rerank.types import Passage, Query
from rerank.util.files import missing_path_hint


@dataclass(frozen=True, slots=True)
class Collection:
    """A named source of passages, with queries and judgements. Each call reads it from the start.

    Attributes:
        name: the name in manifests, reports and messages.
        passages: reads the passages.
        lines_of: doc_id → the 1-based numbers of the lines that define it, for error messages.
        fingerprint: returns a text that changes when the passages do.
        queries: reads the queries.
        qrels: reads the judgements of a split, such as "test".
    """

    name: str
    passages: Callable[[], Iterator[Passage]]
    lines_of: Callable[[str], list[int]] = lambda _: []
    fingerprint: Callable[[], str] = lambda: ""
    queries: Callable[[], list[Query]] = list
    qrels: Callable[[str], list[Qrel]] = lambda _: []

    def find(self, doc_ids: Ids[str]) -> dict[str, Passage]:
        """Passages by doc_id; leaves out those that the collection lacks."""
        wanted = set(doc_ids)
        return {passage.doc_id: passage for passage in self.passages() if passage.doc_id in wanted}


def _pydoc() -> Collection:
    return Collection(pydoc.name(), pydoc.passages, queries=pydoc.queries, qrels=lambda _: pydoc.qrels())


#: Collections that have a name.
NAMED: dict[str, Callable[[], Collection]] = {"pydoc": _pydoc}


def open_collection(name_or_path: str) -> Collection:
    """Opens a named collection, a folder in BEIR layout, or its file of passages, and reads the first passages.

    Raises:
        CollectionError: the argument names no collection, or the first passages cannot be read.
    """
    if name_or_path in NAMED:
        return NAMED[name_or_path]()
    path = Path(name_or_path).absolute()
    corpus = beir.corpus_file(path)
    if not corpus.is_file():
        raise CollectionError(f"collection {name_or_path!r}: {no_collection(Path(name_or_path))}")
    beir.check_passages(path)
    return Collection(
        beir.name_of(path),
        partial(beir.passages, path),
        partial(beir.lines_of, path),
        partial(beir.fingerprint, path),
        partial(beir.queries, corpus.parent),
        partial(_beir_qrels, path),
    )


def no_collection(path: Path) -> str:
    """The problem with a path that is not a collection, and what to give instead."""
    kinds = "a folder with a corpus.jsonl or corpus.tsv, or a file whose name ends in .jsonl or .tsv, also with .gz"
    forms = f"give {', '.join(map(repr, NAMED))}, {kinds}"
    if path.is_dir():
        return f"the folder has no corpus.jsonl; {forms}"
    if path.exists():
        return f"the file's name has another ending; {forms}"
    return f"there is no such folder or file{missing_path_hint(path)}; {forms}"


def _beir_qrels(path: Path, split: str) -> list[Qrel]:
    """The judgements of qrels/SPLIT.tsv, with the ids of the queries and passages."""

    def query_ids(_: Ids[str]) -> set[str]:
        return {query.query_id for query in beir.queries(beir.corpus_file(path).parent)}

    def doc_ids(asked: Ids[str]) -> set[str]:
        return {passage.doc_id for passage in beir.passages(path) if passage.doc_id in asked}

    return with_known_ids(beir.qrels(path, split), query_ids, doc_ids)


def is_collection(name_or_path: str) -> bool:
    """True for a named collection, a folder with passages, and a file with a suffix of files of passages."""
    return name_or_path in NAMED or beir.corpus_file(Path(name_or_path)).is_file()
