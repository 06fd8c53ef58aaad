"""Opens test collections of `rerank.collections` and ir_datasets by name, and reads TREC runs over them."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Collection as Ids
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import rerank.collections
from rerank.collections import Collection, is_collection, no_collection
from rerank.errors import CollectionError, ConfigError
from rerank.readers.candidates import CandidateList
from rerank.readers.qrels import Qrel, columns_of, grade_of, known_ids, to_column
from rerank.readers.rows import BadRow, finite_number, parsed_lines
from rerank.types import Passage, Query

_TREC_DL = {
    f"trec-dl-{year}": f"msmarco-passage{'' if year < 2021 else '-v2'}/trec-dl-{year}/judged"
    for year in range(2019, 2024)
}


def open_collection(name: str) -> Collection:
    """Opens a test collection.

    Args:
        name: a named collection, a folder in BEIR layout, trec-dl-YEAR, or a name of ir_datasets, which includes the
            split, so that the argument of the collection's `qrels` has no effect.

    Raises:
        CollectionError: a file of the folder cannot be read.
        ConfigError: ir_datasets is not installed, or does not know the name. Its collections are downloaded when they
            are read, which raises this error, too.
    """
    if is_collection(name):
        return rerank.collections.open_collection(name)
    if Path(name).exists():
        raise CollectionError(f"collection {name!r}: {no_collection(Path(name))}")
    opened = _load(name)
    return _IrDataset(
        name,
        lambda: map(_passage, opened.docs_iter()),
        queries=partial(_queries, name, opened),
        qrels=lambda _: _qrels(name, opened),
        opened=opened,
    )


def named_qrels(name: str) -> list[Qrel] | None:
    """The judgements of trec-dl-YEAR or of a dataset of ir_datasets; None if neither has this name.

    Raises:
        ConfigError: the judgements cannot be downloaded; or the name is trec-dl-YEAR, and ir_datasets is not installed.
    """
    try:
        opened = _load(name)
    except ConfigError:
        if name in _TREC_DL:
            raise
        return None
    return _qrels(name, opened)


@dataclass(frozen=True, slots=True)
class _IrDataset(Collection):
    """A collection of ir_datasets, which finds passages without reading all of them."""

    opened: Any = None

    def find(self, doc_ids: Ids[str]) -> dict[str, Passage]:
        with _named_errors("the passages"):
            docs = self.opened.docs_store().get_many(doc_ids)
        return {doc_id: _passage(doc) for doc_id, doc in docs.items()}


def _queries(name: str, opened: Any) -> list[Query]:
    with _named_errors(f"{name} of ir_datasets"):
        return [Query(row.default_text(), row.query_id) for row in opened.queries_iter()]


def _qrels(name: str, opened: Any) -> list[Qrel]:
    with _named_errors(f"{name} of ir_datasets"):
        return [Qrel(row.query_id, row.doc_id, grade_of(row.relevance)) for row in opened.qrels_iter()]


def _passage(doc: Any) -> Passage:
    text, title = doc.default_text(), getattr(doc, "title", "") or ""
    return Passage(doc.doc_id, text, title=title if text.startswith(title) else "")


def _load(name: str) -> Any:
    problem = f"collection {name!r}: {no_collection(Path(name))}"
    try:
        import ir_datasets
    except ModuleNotFoundError as error:
        raise ConfigError(f"{problem}; for names of ir_datasets, install rerank-listwise[eval]") from error
    # Lines about failed downloads would hide the error message, which names the failure.
    logging.getLogger("ir_datasets").addFilter(_is_no_failed_download)
    try:
        return ir_datasets.load(_TREC_DL.get(name, name))
    except KeyError as error:
        raise ConfigError(f"{problem}, or a name that ir_datasets knows") from error


def _is_no_failed_download(record: logging.LogRecord) -> bool:
    return not record.getMessage().lower().startswith(("download error", "download failed"))


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Turns errors of ir_datasets into one line: the messages of HTTP clients repeat the address at each layer."""
    try:
        yield
    except AttributeError as error:
        raise ConfigError(f"{what} lacks passages, queries or judgements: {error}") from error
    except (OSError, RuntimeError) as error:
        cause: BaseException = error
        if isinstance(error, RuntimeError) and error.args[1:]:  # the arguments are a text and [(source, error), ...]
            cause = error.args[1][0][1]
        while (deeper := cause.__cause__ or cause.__context__) is not None:
            cause = deeper
        raise ConfigError(
            f"{what} cannot be downloaded ({cause}); connect this machine to a network, or give files that it has"
        ) from error


# --- TREC runs: lines of query_id, Q0, doc_id, rank, score, tag


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Reads a run: query_id → doc_id → score. Ids are read as in judgements, see `read_qrels`.

    Raises:
        CollectionError: the file or a line of it cannot be read, or two lines have the same passage of a query; the
            message names the line.
    """
    scores: dict[str, dict[str, float]] = {}
    for number, (query_id, doc_id, score) in parsed_lines(path, _run_row):
        docs = scores.setdefault(query_id, {})
        if doc_id in docs:
            rows = parsed_lines(path, _run_row)
            first = next(line for line, row in rows if row[:2] == (query_id, doc_id))
            raise CollectionError(
                f"{path}:{number} repeats the passage {doc_id!r} of query {query_id!r} of line {first}; keep one"
            )
        docs[doc_id] = score
    return scores


def _run_row(line: str) -> tuple[str, str, float]:
    columns = columns_of(line, 6)
    if len(columns) != 6:
        raise BadRow(f"has {len(columns)} columns; expected query_id, Q0, doc_id, rank, score and tag")
    query_id, _, doc_id, _, score, _ = columns
    if not query_id or not doc_id:
        raise BadRow(f"has the query_id {reprlib.repr(query_id)} and the doc_id {reprlib.repr(doc_id)}; give both")
    return query_id, doc_id, finite_number(score, "score")


def candidates_of_run(
    path: Path, collection: Collection, queries: Mapping[str, Query], depth: int = 0
) -> tuple[list[CandidateList], set[str]]:
    """The first `depth` candidates (0: all) of each query in a TREC run, with their texts.

    They are sorted as trec_eval sorts them, by score and equal scores by descending doc_id; the rank column is ignored.
    Ids may have their white space percent-encoded, as `trec_run` writes it.

    Args:
        queries: the judged queries of the collection.

    Returns:
        The lists, and the ids of all queries of the run.

    Raises:
        CollectionError: the file is not a TREC run, holds none of the judged queries, or names a passage that is not
            in the collection.
    """
    run = _with_known_ids(read_run(path), collection, queries)
    ranked = {
        query_id: sorted(run[query_id].items(), key=lambda doc: (doc[1], doc[0]), reverse=True)[: depth or None]
        for query_id in queries
        if query_id in run
    }
    if not ranked:
        raise CollectionError(
            f"{path} holds none of the {len(queries)} judged queries of {collection.name}, but {len(run)} others; "
            "give the run of these queries"
        )
    doc_ids = {doc_id for docs in ranked.values() for doc_id, _ in docs}
    passages = collection.find(doc_ids)
    if missing := [doc_id for doc_id in doc_ids if doc_id not in passages]:
        names = ", ".join(map(repr, missing[:5]))
        raise CollectionError(f"{len(missing)} of {len(doc_ids)} passages are not in {collection.name}: {names}")
    lists = [
        CandidateList(queries[query_id], tuple(replace(passages[doc_id], score=score) for doc_id, score in docs))
        for query_id, docs in ranked.items()
    ]
    return lists, set(run)


def _with_known_ids(
    scores: Mapping[str, Mapping[str, float]], collection: Collection, queries: Mapping[str, Query]
) -> dict[str, dict[str, float]]:
    """query_id → doc_id → score, with the ids as the collection writes them."""
    query_ids = known_ids(scores, queries)
    spaced = {doc_id for row in scores.values() for doc_id in row if to_column(doc_id) != doc_id}
    doc_ids = known_ids(spaced, collection.find(spaced | set(map(to_column, spaced)))) if spaced else {}
    return {query_ids[q]: {doc_ids.get(d, d): score for d, score in row.items()} for q, row in scores.items()}
