"""Training lists: a query, its passages in first-stage order, and how relevant each is. Read, checked, written.

One list a line of JSON:

    {"query_id": "7", "query": "how long does a flea live", "instruction": "optional",
     "passages": [{"doc_id": "d1", "text": "A flea lives a year."}, {"doc_id": "d2", "text": "Deserts are dry."}],
     "relevance": [2, 0]}

`"ranking": ["d1", "d2"]` (doc_ids, or places counted from 0, best first) may stand for `relevance`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rerank.collections.requests import Qrel, Request, parse_request, read_trec_qrels
from rerank.errors import CollectionError
from rerank.types import Passage, Query
from rerank_training.conversations import Conversation, parse_conversation

logger = logging.getLogger(__name__)

#: query_id → doc_id → grade.
Grades: TypeAlias = Mapping[str, Mapping[str, float]]

#: How many bad lines a message spells out.
_SHOWN_BAD_LINES = 5


@dataclass(frozen=True, slots=True)
class TrainingList:
    """What a ranker learns from.

    Args:
        passages: two or more with distinct doc_ids, in first-stage order.
        relevance: a finite number for each passage, higher is better; only the order of unequal numbers is certain
            to mean something, their scale depends on where they come from.

    Raises:
        CollectionError: something of that does not hold, or a text is empty.
    """

    query: Query
    passages: tuple[Passage, ...]
    relevance: tuple[float, ...]

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise CollectionError(problem)


def read_lists(path: Path, max_bad_share: float = 0.01, qrels: Path | None = None) -> list[TrainingList]:
    """The lists in a file of any of these forms, which each row shows by its keys:

    - our own, above;
    - conversations, as the training sets of RankZephyr and FIRST are published (see conversations.py);
    - RankLLM requests, of which `qrels` (TREC form) gives the relevance; see `judged_list`.

    The file is JSONL, or one JSON array. Bad rows are left out and logged with their place and reason.

    Args:
        max_bad_share: how much of the file may be bad, in 0–1.

    Raises:
        CollectionError: the file cannot be read, holds no list, or more than `max_bad_share` of it is bad.
    """
    grades = None if qrels is None else read_grades(qrels)
    lists: list[TrainingList] = []
    bad: list[str] = []
    for place, row in _rows(path):
        try:
            lists.append(_parse(json.loads(row) if isinstance(row, str) else row, place, grades))
        except CollectionError as error:
            bad.append(f"{place}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            bad.append(f"{place}: not in a known form ({error!r})")
    _judge(path, len(lists), bad, max_bad_share)
    return lists


def read_requests(requests: Path, qrels: Path, max_bad_share: float = 0.01) -> list[TrainingList]:
    """The lists of a RankLLM request file and its judgements. Args and errors as of `read_lists`."""
    return read_lists(requests, max_bad_share, qrels)


def read_grades(qrels: Path) -> Grades:
    """A TREC judgement file by query and document. Raises: CollectionError when it cannot be read."""
    return grades_of(read_trec_qrels(qrels))


def grades_of(qrels: Iterable[Qrel]) -> Grades:
    """Judgements by query and document."""
    grades: dict[str, dict[str, float]] = defaultdict(dict)
    for qrel in qrels:
        grades[qrel.query_id][qrel.doc_id] = float(qrel.relevance)
    return dict(grades)


def judged_list(request: Request, grades: Grades) -> TrainingList:
    """A request with its grades; a candidate that nobody judged counts with 0.

    Raises:
        CollectionError: the query was not judged, or the candidates are no list.
    """
    query_id = request.query.query_id
    if query_id not in grades:
        raise CollectionError(f"no judgement for query {query_id!r}")
    judged = grades[query_id]
    passages = request_passages(request)
    return TrainingList(request.query, passages, tuple(judged.get(passage.doc_id, 0.0) for passage in passages))


def request_passages(request: Request) -> tuple[Passage, ...]:
    """The candidates as passages, in first-stage order."""
    return tuple(Passage(candidate.doc_id, candidate.text or "") for candidate in request.candidates)


def relevance_of(ranking: Sequence[int], n: int) -> tuple[float, ...]:
    """A ranking of n passages as relevance: n for the first, then one less a rank.

    Args:
        ranking: places in 0…n-1, best first. It may end early; the passages that it does not name share 0.

    Raises:
        CollectionError: it names nothing, or a place twice or outside the list.
    """
    if not ranking or len(set(ranking)) != len(ranking) or not all(0 <= place < n for place in ranking):
        raise CollectionError(f"ranking {list(ranking)} does not name passages 0 to {n - 1}, each at most once")
    relevance = [0.0] * n
    for rank, place in enumerate(ranking):
        relevance[place] = float(n - rank)
    return tuple(relevance)


def write_lists(path: Path, lists: Iterable[TrainingList]) -> int:
    """Writes lists in our own form, and how many. `path` appears (or changes) when all are written, or not at all."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            written = [file.write(json.dumps(_row(item), ensure_ascii=False) + "\n") for item in lists]
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would shut out other users
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return len(written)


class _PassageRow(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    doc_id: str
    text: str


class _ListRow(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    query_id: str
    query: str
    instruction: str = ""
    passages: list[_PassageRow]
    relevance: list[Annotated[float, Field(allow_inf_nan=False)]] | None = None
    ranking: list[str | int] | None = None


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row) of a file: a line of JSONL, or a member of the one array, which is parsed already."""
    try:
        text = path.read_text(encoding="utf-8")
        array = json.loads(text) if text.lstrip().startswith("[") else None
    except (OSError, ValueError) as error:
        raise CollectionError(f"{path} cannot be read: {error}") from error
    if array is not None:
        yield from ((f"{path.name}[{number}]", row) for number, row in enumerate(array))
    else:
        lines = enumerate(text.split("\n"), start=1)
        yield from ((f"{path.name}:{number}", line) for number, line in lines if line.strip())


def _parse(row: Any, place: str, grades: Grades | None) -> TrainingList:
    if "candidates" in row:
        if grades is None:
            raise CollectionError(
                "a request has no relevance of its own; give its qrels, or build lists with a teacher"
            )
        return judged_list(parse_request(row), grades)
    if "conversations" in row or "messages" in row:
        return _from_conversation(parse_conversation(row), str(row.get("id", place)))
    return _from_row(row)


def _from_conversation(said: Conversation, query_id: str) -> TrainingList:
    """The identifiers serve as doc_ids: the published form has no others."""
    passages = tuple(Passage(name, text) for name, text in said.passages.items())
    return TrainingList(Query(said.query, query_id=query_id), passages, relevance_of(said.ranking, len(passages)))


def _from_row(row: Any) -> TrainingList:
    try:
        parsed = _ListRow.model_validate(row)
    except ValidationError as error:
        raise CollectionError(
            "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        ) from error
    passages = tuple(Passage(passage.doc_id, passage.text) for passage in parsed.passages)
    query = Query(parsed.query, parsed.query_id, parsed.instruction)
    if (parsed.relevance is None) == (parsed.ranking is None):
        raise CollectionError("needs either relevance or ranking")
    if parsed.ranking is not None:
        return TrainingList(query, passages, relevance_of(_places(parsed.ranking, passages), len(passages)))
    return TrainingList(query, passages, tuple(parsed.relevance or ()))


def _places(ranking: Sequence[str | int], passages: Sequence[Passage]) -> list[int]:
    place = {passage.doc_id: number for number, passage in enumerate(passages)}
    if unknown := [item for item in ranking if isinstance(item, str) and item not in place]:
        raise CollectionError(f"ranking names {unknown[0]!r}, which is no doc_id of the list")
    return [place[item] if isinstance(item, str) else item for item in ranking]


def _row(item: TrainingList) -> dict[str, Any]:
    instruction = {"instruction": item.query.instruction} if item.query.instruction else {}
    passages = [{"doc_id": passage.doc_id, "text": passage.text} for passage in item.passages]
    asked = {"query_id": item.query.query_id, "query": item.query.text}
    return {**asked, **instruction, "passages": passages, "relevance": list(item.relevance)}


def _problem(item: TrainingList) -> str | None:
    """What is wrong with a list, or None."""
    n, doc_ids = len(item.passages), {passage.doc_id for passage in item.passages}
    if n < 2:
        return f"{n} passages; a list needs two or more"
    if len(doc_ids) < n:
        return f"{n} passages with {len(doc_ids)} distinct doc_ids"
    if len(item.relevance) != n:
        return f"{len(item.relevance)} relevances for {n} passages"
    if infinite := [value for value in item.relevance if not math.isfinite(value)]:
        return f"relevance {infinite[0]} is not finite"
    if not item.query.text.strip():
        return "the query is empty"
    for passage in item.passages:
        if not passage.text.strip():
            return f"passage {passage.doc_id!r} is empty"
    return _half_characters([item.query.text, *(passage.text for passage in item.passages)])


def _half_characters(texts: Iterable[str]) -> str | None:
    """JSON can hold half of a surrogate pair, which no tokenizer takes."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        return f"a text is no valid Unicode ({error.reason})"
    return None


def _judge(path: Path, good: int, bad: Sequence[str], max_bad_share: float) -> None:
    """Logs the bad rows, or raises for them."""
    if not good and not bad:
        raise CollectionError(f"{path} holds no lists")
    share = len(bad) / (good + len(bad))
    shown = "; ".join(bad[:_SHOWN_BAD_LINES]) + ("; …" if len(bad) > _SHOWN_BAD_LINES else "")
    counted = f"{path}: {len(bad)} of {good + len(bad)} lists are bad ({share:.1%})"
    if share > max_bad_share or not good:
        raise CollectionError(f"{counted}, allowed are {max_bad_share:.1%}; mend them or allow more: {shown}")
    if bad:
        logger.warning("%s and left out: %s", counted, shown)
