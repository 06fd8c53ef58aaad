"""Queries with judgements and the passages that they speak of, by name: pydoc, BEIR folders, ir_datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ir_measures import Qrel

from rerank.collections import open_collection
from rerank.errors import CollectionError, ConfigError
from rerank.types import Query
from rerank_eval.data import read_beir_qrels, read_beir_queries


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a run is made for and judged by.

    Attributes:
        queries: the judged ones, by query_id.
        find: doc_ids → text by doc_id, of those that the collection holds.
    """

    name: str
    queries: Mapping[str, Query]
    qrels: Sequence[Qrel]
    find: Callable[[Collection[str]], Mapping[str, str]]

    def texts(self, doc_ids: Collection[str]) -> Mapping[str, str]:
        """The text of each. Raises: CollectionError when the collection lacks one; the message names the first few."""
        found = self.find(doc_ids)
        if missing := [doc_id for doc_id in doc_ids if doc_id not in found]:
            names = ", ".join(map(repr, missing[:5]))
            raise CollectionError(f"{len(missing)} of {len(doc_ids)} passages are not in {self.name}: {names}")
        return found

    @property
    def queries_sha256(self) -> str:
        return _sha256(sorted((query_id, query.text) for query_id, query in self.queries.items()))

    @property
    def qrels_sha256(self) -> str:
        return _sha256(sorted((qrel.query_id, qrel.doc_id, qrel.relevance) for qrel in self.qrels))


def open_dataset(name: str, split: str = "test") -> Dataset:
    """`pydoc`, a folder in BEIR layout (with `split`), or a name of ir_datasets (which has its split in it).

    Raises:
        CollectionError: a file of the folder cannot be read.
        ConfigError: ir_datasets is not installed, knows no such name, or could not fetch it.
    """
    if name == "pydoc":
        return _pydoc()
    if (Path(name) / "corpus.jsonl").is_file():
        folder = Path(name).absolute()
        queries, qrels = read_beir_queries(folder), read_beir_qrels(folder, split)
        return Dataset(folder.name, _judged(queries, qrels), qrels, lambda doc_ids: _of_collection(name, doc_ids))
    if Path(name).exists():
        raise CollectionError(f"{name} holds no corpus.jsonl; expected a folder in BEIR layout")
    return _of_ir_datasets(name)


def _pydoc() -> Dataset:
    from rerank.commands.demo import qrels, queries

    judged = qrels()
    asked = [Query(text, query_id) for query_id, text in queries().items()]
    return Dataset(
        open_collection("pydoc").name, _judged(asked, judged), judged, lambda doc_ids: _of_collection("pydoc", doc_ids)
    )


def _of_collection(name: str, doc_ids: Collection[str]) -> dict[str, str]:
    wanted = set(doc_ids)
    return {found.doc_id: found.text for found in open_collection(name).passages() if found.doc_id in wanted}


def _of_ir_datasets(name: str) -> Dataset:
    neither = f"collection {name!r} is neither 'pydoc' nor a folder that holds corpus.jsonl"
    try:
        import ir_datasets
    except ModuleNotFoundError as error:
        raise ConfigError(f"{neither}; to take it as a name of ir_datasets, install rerank[eval]") from error
    try:
        opened = ir_datasets.load(name)
        qrels = [Qrel(row.query_id, row.doc_id, row.relevance) for row in opened.qrels_iter()]
        queries = [Query(row.default_text(), row.query_id) for row in opened.queries_iter()]
    except KeyError as error:
        raise ConfigError(f"{neither} nor a name that ir_datasets knows") from error
    except AttributeError as error:
        raise ConfigError(f"{name} of ir_datasets lacks passages, queries or judgements ({error})") from error
    except OSError as error:
        raise ConfigError(f"{name} of ir_datasets could not be fetched, which needs a network: {error}") from error
    return Dataset(name, _judged(queries, qrels), qrels, lambda doc_ids: _texts(opened, doc_ids))


def _texts(opened: Any, doc_ids: Collection[str]) -> dict[str, str]:
    try:
        found = opened.docs_store().get_many(doc_ids)
    except OSError as error:
        raise ConfigError(f"passages of ir_datasets could not be fetched, which needs a network: {error}") from error
    return {doc_id: doc.default_text() for doc_id, doc in found.items()}


def _judged(queries: Iterable[Query], qrels: Iterable[Qrel]) -> dict[str, Query]:
    judged_ids = {qrel.query_id for qrel in qrels}
    return {query.query_id: query for query in queries if query.query_id in judged_ids}


def _sha256(rows: object) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()
