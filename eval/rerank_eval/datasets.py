"""Test collections by name, with queries, judgements and passages: from `rerank.collections`, and ir_datasets."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank.collections import NAMED, is_collection, open_collection
from rerank.errors import CollectionError, ConfigError
from rerank.readers.qrels import Qrel, grade_of, read_qrels
from rerank.types import Passage, Query
from rerank.util.files import sha256_of_files
from rerank_eval.overlap import judgements_of

_TREC_DL = {
    f"trec-dl-{year}": f"msmarco-passage{'' if year < 2021 else '-v2'}/trec-dl-{year}/judged"
    for year in range(2019, 2024)
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A test collection.

    Attributes:
        queries: those that have judgements, by query_id.
        find: function from doc_ids to their passages by doc_id; leaves out those that the collection lacks.
    """

    name: str
    queries: Mapping[str, Query]
    qrels: Sequence[Qrel]
    find: Callable[[Collection[str]], Mapping[str, Passage]]

    def passages(self, doc_ids: Collection[str]) -> Mapping[str, Passage]:
        """Passages by doc_id.

        Raises:
            CollectionError: the collection lacks some of the passages; the message names the first five.
        """
        passages = self.find(doc_ids)
        if missing := [doc_id for doc_id in doc_ids if doc_id not in passages]:
            names = ", ".join(map(repr, missing[:5]))
            raise CollectionError(f"{len(missing)} of {len(doc_ids)} passages are not in {self.name}: {names}")
        return passages

    @property
    def queries_sha256(self) -> str:
        return _sha256(sorted((query_id, query.text) for query_id, query in self.queries.items()))


def open_dataset(name: str, split: str = "test") -> Dataset:
    """Opens a test collection.

    Args:
        name: a named collection, a folder in BEIR layout, trec-dl-YEAR, or a name of ir_datasets (which includes the
            split).
        split: the judgements of a folder in BEIR layout, qrels/SPLIT.tsv.

    Raises:
        CollectionError: a file of the folder cannot be read, or no query is judged.
        ConfigError: ir_datasets is not installed, does not know the name, or cannot download the collection.
    """
    if is_collection(name):
        collection = open_collection(name)
        qrels = collection.qrels(split)
        return Dataset(collection.name, _judged(collection.queries(), qrels, name), qrels, collection.find)
    if Path(name).exists():
        raise CollectionError(f"{name} holds no corpus.jsonl; expected a folder in BEIR layout")
    with _of_ir_datasets(name):
        opened = _load(name)
        qrels = _qrels(opened)
        queries = [Query(row.default_text(), row.query_id) for row in opened.queries_iter()]
    judged = _judged(queries, qrels, name)
    return Dataset(name, judged, qrels, lambda doc_ids: _passages_of_ir_dataset(opened, doc_ids))


def open_qrels(name: str, doc_ids: Collection[str]) -> tuple[Sequence[Qrel], str]:
    """The judgements of request files, and their SHA-256.

    Args:
        name: a file, see `read_qrels`; trec-dl-YEAR, or a name of ir_datasets.
        doc_ids: of the candidates.

    Raises:
        CollectionError: the file cannot be read.
        ConfigError: as `open_dataset`.
    """
    path = Path(name)
    if path.exists() or (name not in _TREC_DL and not _is_known(name)):
        return read_qrels(path, doc_ids), sha256_of_files([path])
    with _of_ir_datasets(name):
        qrels = _qrels(_load(name))
    return qrels, qrels_sha256(qrels)


def _is_known(name: str) -> bool:
    """True for a name that ir_datasets knows."""
    try:
        return _load(name) is not None
    except ConfigError:
        return False


def qrels_sha256(qrels: Iterable[Qrel]) -> str:
    return _sha256(sorted(qrels))


def _qrels(opened: Any) -> list[Qrel]:
    return [Qrel(row.query_id, row.doc_id, grade_of(row.relevance)) for row in opened.qrels_iter()]


def _load(name: str) -> Any:
    neither = f"collection {name!r} is neither {', '.join(map(repr, NAMED))} nor a folder that holds corpus.jsonl"
    try:
        import ir_datasets
    except ModuleNotFoundError as error:
        raise ConfigError(f"{neither}; for names of ir_datasets, install rerank-listwise[eval]") from error
    logging.getLogger("ir_datasets").addFilter(_is_not_a_failure)  # is named by the error below, which it would bury
    try:
        return ir_datasets.load(_TREC_DL.get(name, name))
    except KeyError as error:
        raise ConfigError(f"{neither}, nor a name that ir_datasets knows") from error


@contextmanager
def _of_ir_datasets(name: str) -> Iterator[None]:
    try:
        yield
    except AttributeError as error:
        raise ConfigError(f"{name} of ir_datasets lacks passages, queries or judgements: {error}") from error
    except (OSError, RuntimeError) as error:
        raise _no_download(f"{name} of ir_datasets", error) from error


def _is_not_a_failure(record: logging.LogRecord) -> bool:
    return not record.getMessage().lower().startswith(("download error", "download failed"))


def _no_download(what: str, error: BaseException) -> ConfigError:
    """The error of a failed download in one line: the messages of HTTP clients repeat the address at each layer."""
    if isinstance(error, RuntimeError) and error.args[1:]:  # of ir_datasets: a text, and [(source, error), ...]
        error = error.args[1][0][1]
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return ConfigError(
        f"{what} cannot be downloaded ({error}); connect this machine to a network, or give files that it has"
    )


def _passages_of_ir_dataset(opened: Any, doc_ids: Collection[str]) -> dict[str, Passage]:
    with _of_ir_datasets("the passages"):
        docs = opened.docs_store().get_many(doc_ids)
    passages = {}
    for doc_id, doc in docs.items():
        text, title = doc.default_text(), getattr(doc, "title", "") or ""
        passages[doc_id] = Passage(doc_id, text, title=title if text.startswith(title) else "")
    return passages


def _judged(queries: Sequence[Query], qrels: Sequence[Qrel], name: str) -> dict[str, Query]:
    judgements_of((query.query_id for query in queries), qrels, name)  # raises if no query is judged
    judged_ids = {qrel.query_id for qrel in qrels}
    return {query.query_id: query for query in queries if query.query_id in judged_ids}


def _sha256(rows: object) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()
