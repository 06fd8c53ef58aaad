"""Checks that queries, judgements and passages share ids, and writes notes on ids that one of them lacks."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path

from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel
from rerank.retrieval.store import PassageTexts
from rerank.types import Passage
from rerank_eval.measures import Run

#: A note names at most this many query ids.
_MAX_NAMED_QUERIES = 20
#: A note names at most this many relevant passages that are not candidates.
_MAX_NAMED_PASSAGES = 3


def judgements_of(
    query_ids: Iterable[str], qrels: Sequence[Qrel], source: str, not_retrieved: Sequence[str] = ()
) -> tuple[Sequence[Qrel], tuple[str, ...]]:
    """The judgements of the queries that an evaluation asks.

    Args:
        query_ids: ids of the queries that are asked.
        qrels: all judgements.
        source: where the queries come from, for error messages.
        not_retrieved: ids of judged queries without candidates, which count as 0.

    Returns:
        The judgements, and notes if some judged queries are not asked or some asked queries are not judged.

    Raises:
        CollectionError: no query is judged.
    """
    asked, judged = set(query_ids), {qrel.query_id for qrel in qrels}
    shared = asked & judged
    if not shared:
        raise CollectionError(
            f"no query of {source} is judged: {len(asked)} queries are asked{_example(asked)}, {len(judged)} are judged"
            f"{_example(judged)}, and no query id is in both; give the judgements of these queries"
        )
    notes = []
    if (counted := len(shared) + len(not_retrieved)) < len(judged):
        notes.append(f"{counted} of {len(judged)} judged queries were asked; means and tests are over these.")
    if unjudged := sorted(asked - judged):
        names = first_ids(unjudged)
        notes.append(f"{len(unjudged)} of {len(asked)} queries have no judgements and are not measured: {names}.")
    return [qrel for qrel in qrels if qrel.query_id in asked.union(not_retrieved)], tuple(notes)


def check_doc_ids(found: Set[str], qrels: Iterable[Qrel], source: str) -> None:
    """Raises: CollectionError if none of the found passages is judged, so that every measure would be 0."""
    judged = {qrel.doc_id for qrel in qrels}
    if judged.isdisjoint(found):
        raise CollectionError(
            f"nothing can be measured: {len(found)} {source}{_example(found)}, {len(judged)} judged passages"
            f"{_example(judged)}, and no doc id is in both; give candidates from the collection that was judged"
        )


def notes_on_missing_candidates(first_stage: Run, qrels: Iterable[Qrel], rel: int) -> tuple[str, ...]:
    """A note if relevant passages are not candidates of their query, so that no order can find them.

    Args:
        first_stage: the candidates of all queries.
        rel: least grade that counts as relevant.
    """
    found = {query_id: {doc.doc_id for doc in docs} for query_id, docs in first_stage.items()}
    relevant = [qrel for qrel in qrels if qrel.relevance >= rel and qrel.query_id in found]
    missing = [qrel for qrel in relevant if qrel.doc_id not in found[qrel.query_id]]
    if not missing:
        return ()
    of_grade = f" (grade {rel} and above)" if rel > 1 else ""
    examples = ", ".join(f"{qrel.doc_id!r} of {qrel.query_id!r}" for qrel in missing[:_MAX_NAMED_PASSAGES])
    return (
        f"{len(missing):,} of {len(relevant):,} relevant query-passage pairs{of_grade} are not among the candidates, "
        f"so no order can find them (such as {examples}).",
    )


def notes_on_missing_relevance(qrels: Iterable[Qrel], rel: int) -> tuple[str, ...]:
    """A note if measured queries have no relevant passage, so that RR, AP and R are 0 for them whatever the order.

    Args:
        rel: least grade that counts as relevant.
    """
    highest: dict[str, int] = {}
    for qrel in qrels:
        highest[qrel.query_id] = max(qrel.relevance, highest.get(qrel.query_id, 0))
    lacking = [query_id for query_id, grade in highest.items() if grade < rel]
    if not lacking:
        return ()
    if not any(highest.values()):
        return (f"None of the {len(highest)} measured queries has a passage above grade 0, so every measure is 0.",)
    passage = f"passage of grade {rel} or above"
    if len(lacking) == len(highest):
        way_out = f"; give --rel {max(highest.values())} or less"
        return (f"None of the {len(highest)} measured queries has a {passage}, so RR, AP and R are 0{way_out}.",)
    return (
        f"{len(lacking)} of {len(highest)} measured queries have no {passage} and count as 0 in RR, AP and R: "
        f"{first_ids(lacking)}.",
    )


def notes_on_empty_lists(lists: Mapping[str, Sequence[Passage]]) -> tuple[str, ...]:
    """A note if judged or asked queries have no candidates; no system is asked about them."""
    empty = [query_id for query_id, candidates in lists.items() if not candidates]
    return (f"Queries without candidates, which count as 0: {len(empty)} ({first_ids(empty)}).",) if empty else ()


def check_index(index: Path, qrels: Iterable[Qrel], collection: str) -> None:
    """Raises: CollectionError if the index has none of the judged passages."""
    if not (index / "manifest.json").is_file():
        return  # the service names the fault when it opens the index
    store, judged = PassageTexts(index), {qrel.doc_id for qrel in qrels}
    if not store.texts(sorted(judged)):
        raise CollectionError(
            f"{index} is an index of another collection: it has {len(store)} passages, {collection} has judgements of "
            f"{len(judged)}{_example(judged)}, and no doc id is in both; build one with `rerank index --collection "
            f"{shlex.quote(collection)} --out FOLDER`"
        )


def notes_on_index_name(searched: object, dataset: str) -> tuple[str, ...]:
    """A note if the searched index was built from a collection of another name: equal doc ids can be chance.

    Args:
        searched: the fields of the message Index (rerank.proto).
        dataset: name of the judged collection; ir_datasets has names such as beir/scifact/test.
    """
    indexed = searched.get("collection") if isinstance(searched, Mapping) else None
    if not indexed or indexed == dataset or indexed in dataset.split("/"):
        return ()
    return (
        f"The index is of a collection named {indexed}, the judgements are of {dataset}; if these are not the same "
        "passages, the figures mean nothing.",
    )


def first_ids(query_ids: Sequence[str]) -> str:
    """The first ids, for a sentence."""
    return ", ".join(query_ids[:_MAX_NAMED_QUERIES]) + (" and others" if len(query_ids) > _MAX_NAMED_QUERIES else "")


def _example(ids: Collection[str]) -> str:
    return f" (such as {min(ids)!r})" if ids else ""
