"""Queries, judgements and texts of an evaluation, from the files that its settings name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rerank.collections import NAMED, Collection, beir, find_collection
from rerank.errors import ConfigError
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.readers.requests import read_requests
from rerank.retrieval.store import PassageStore

#: Finds the texts of passages by their doc_ids; leaves out those that it does not find.
FindTexts: TypeAlias = Callable[[Set[str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Sources:
    """The queries, judgements and passages of an evaluation.

    Attributes:
        queries: texts by query_id.
        grades: query_id → doc_id → grade; grades below 0 count as 0.
        find_texts: finds texts of passages.
    """

    queries: Mapping[str, str]
    grades: Mapping[str, Mapping[str, int]]
    find_texts: FindTexts


def sources_of(settings: Mapping[str, object], dataset: str) -> Sources:
    """The sources of an evaluation.

    Args:
        settings: as its measures.json holds them; files are relative to the folder where the evaluation ran.
        dataset: the name of its folder, which chooses one of several collections.

    Raises:
        ConfigError: the collection is not a folder in BEIR layout or pydoc, or cannot be told from `dataset`.
        CollectionError: a file cannot be read.
    """
    collection = _own(str(settings.get("collection") or ""), lambda path: path.name, dataset)
    asked = _own(str(settings.get("requests") or ""), lambda path: path.absolute().parent.name, dataset)
    if not collection:
        rows = read_requests(Path(asked))
        qrels = _own(str(settings["qrels"]), lambda path: path.absolute().parent.name, dataset)
        texts = {row.doc_id: row.text or "" for request in rows for row in request.candidates}
        return Sources(
            {row.query.query_id: row.query.text for row in rows},
            grades_by_query(read_qrels(Path(qrels), texts)),
            lambda doc_ids: {doc_id: texts[doc_id] for doc_id in doc_ids if doc_id in texts},
        )
    opened, folder = find_collection(collection), Path(collection)
    if collection not in NAMED and not beir.queries_file(folder).is_file():
        raise ConfigError(
            f"the evaluation ran on {collection!r}, which is not a folder in BEIR layout here; run `rerank inspect` in "
            "the folder where the evaluation ran (names of ir_datasets cannot be inspected)"
        )
    queries = {query.query_id: query.text for query in opened.queries()}
    grades = grades_by_query(opened.qrels(str(settings.get("split") or "test")))
    index = _own(str(settings.get("index") or ""), lambda path: path.name, dataset)
    return Sources(queries, grades, _find_texts(opened, Path(index) if index else None))


def _find_texts(collection: Collection, index: Path | None) -> FindTexts:
    """Finds texts in the index if it still exists. Otherwise each call reads the collection."""
    if index is not None and index.is_dir():
        store = PassageStore(index)
        return lambda doc_ids: store.texts(list(doc_ids))
    return lambda doc_ids: {doc_id: passage.text for doc_id, passage in collection.find(doc_ids).items()}


def _own(values: str, name_of: Callable[[Path], str], dataset: str) -> str:
    """The value that belongs to the dataset, of several joined by commas. Raises: ConfigError if none or two do."""
    choices = [value for value in values.split(", ") if value]
    if len(choices) > 1:
        choices = [value for value in choices if name_of(Path(value)) == dataset]
        if len(choices) != 1:
            raise ConfigError(f"none or several of {values} belong to the results {dataset!r}; give another folder")
    return choices[0] if choices else ""
