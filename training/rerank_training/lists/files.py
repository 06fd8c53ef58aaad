"""Files of training lists: reads and checks every supported format, and writes our own.

Our own format is JSONL with one list per line:

    {"query_id": "7", "query": "how long does a flea live", "instruction": "optional",
     "passages": [{"doc_id": "d1", "text": "A flea lives a year."}, {"doc_id": "d2", "text": "Deserts are dry."}],
     "relevance": [2, 0], "scores": [8.5, 7.1]}

`scores` are the first stage's, and optional.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rerank.errors import CollectionError
from rerank.readers.lines import json_rows
from rerank.readers.requests import CandidateList, parse_request
from rerank.readers.rows import BadRow
from rerank.types import Passage, Query
from rerank.util.files import atomic_file, report_disk_errors
from rerank.util.pydantic_words import plain_words
from rerank_training.lists.conversations import Conversation, parse_conversation
from rerank_training.lists.training_list import TrainingList, relevance_from_ranking

logger = logging.getLogger(__name__)

#: query_id → doc_id → grade.
Grades: TypeAlias = Mapping[str, Mapping[str, int]]

#: Largest accepted share of invalid rows.
_MAX_BAD_SHARE = 0.01
#: Number of invalid lines that an error message quotes.
_QUOTED_LINES = 5


def read_lists(path: Path, grades: Grades | None = None) -> list[TrainingList]:
    """Reads training lists: one per line, or in one JSON array; see `rerank.readers.lines.json_rows`.

    Three formats are recognised by the keys of each row:

    - our own, described above;
    - conversations, as the training sets of RankZephyr and FIRST are published; see conversations.py;
    - RankLLM requests, whose relevance is taken from `grades`; see `graded_list`.

    Invalid rows are skipped, and logged with their location and the reason.

    Args:
        grades: needed for requests only.

    Raises:
        CollectionError: the file cannot be read, a line is not a JSON object, there are no lists, or more than a
            hundredth of the rows are invalid.
    """
    lists: list[TrainingList] = []
    errors: list[str] = []
    for line, row in json_rows(path, lambda row: row):
        location = f"{path.name}:{line}"
        try:
            lists.append(_parse(row, location, grades))
        except (CollectionError, BadRow) as error:
            errors.append(f"{location}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            errors.append(f"{location}: not in a supported format ({error!r})")
    _check_errors(path, len(lists), errors)
    return lists


def write_lists(path: Path, lists: Iterable[TrainingList]) -> int:
    """Writes lists in our own format and returns their number. `path` is replaced once all of them are written.

    Raises: ConfigError when the file cannot be written.
    """
    path, count = path.absolute(), 0
    with report_disk_errors(path, "free disk space and give the same command again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for item in lists:
                file.write(json.dumps(_row(item), ensure_ascii=False) + "\n")
                count += 1
    return count


def graded_list(request: CandidateList, grades: Grades) -> TrainingList:
    """The training list of a request, with its grades as relevance; an unjudged candidate has grade 0.

    It has the scores of the candidates if all of them have one.

    Raises:
        CollectionError: the query has no judgement, or the candidates are not a valid list.
    """
    query_id = request.query.query_id
    if query_id not in grades:
        raise CollectionError(f"no judgement for query {query_id!r}")
    passages = request.candidates
    relevance = tuple(float(grades[query_id].get(passage.doc_id, 0)) for passage in passages)
    scores = [candidate.score for candidate in request.candidates if candidate.score is not None]
    return TrainingList(request.query, passages, relevance, tuple(scores) if len(scores) == len(passages) else ())


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
    relevance: list[Annotated[float, Field(allow_inf_nan=False)]]
    scores: list[Annotated[float, Field(allow_inf_nan=False)]] = []


def _parse(row: Any, location: str, grades: Grades | None) -> TrainingList:
    if "candidates" in row or "hits" in row:
        if grades is None:
            raise CollectionError(
                "a request has no relevance; give its judgements with --qrels, or make lists of it with "
                "build-lists and a teacher"
            )
        return graded_list(parse_request(row), grades)
    if "conversations" in row or "messages" in row:
        return _from_conversation(parse_conversation(row), str(row.get("id", location)))
    return _from_row(row)


def _from_conversation(conversation: Conversation, query_id: str) -> TrainingList:
    """The identifiers become doc_ids, because the published format has no others."""
    passages = tuple(Passage(identifier, text) for identifier, text in conversation.passages.items())
    relevance = relevance_from_ranking(conversation.ranking, len(passages))
    return TrainingList(Query(conversation.query, query_id=query_id), passages, relevance)


def _from_row(row: Any) -> TrainingList:
    try:
        parsed = _ListRow.model_validate(row)
    except ValidationError as error:
        raise CollectionError(
            "; ".join(f"{'.'.join(map(str, e['loc']))}: {plain_words(e['msg'])}" for e in error.errors())
        ) from error
    passages = tuple(Passage(passage.doc_id, passage.text) for passage in parsed.passages)
    query = Query(parsed.query, parsed.query_id, parsed.instruction)
    return TrainingList(query, passages, tuple(parsed.relevance), tuple(parsed.scores))


def _row(item: TrainingList) -> dict[str, Any]:
    query = {"query_id": item.query.query_id, "query": item.query.text}
    instruction = {"instruction": item.query.instruction} if item.query.instruction else {}
    passages = [{"doc_id": passage.doc_id, "text": passage.text} for passage in item.passages]
    scores = {"scores": list(item.scores)} if item.scores else {}
    return {**query, **instruction, "passages": passages, "relevance": list(item.relevance), **scores}


def _check_errors(path: Path, valid: int, errors: Sequence[str]) -> None:
    """Logs the invalid rows. Raises: CollectionError when there are too many, or no valid row."""
    if not valid and not errors:
        raise CollectionError(f"{path} holds no lists")
    share = len(errors) / (valid + len(errors))
    quoted = "; ".join(errors[:_QUOTED_LINES]) + ("; …" if len(errors) > _QUOTED_LINES else "")
    summary = f"{path}: {len(errors)} of {valid + len(errors)} lists are invalid ({share:.1%})"
    if share > _MAX_BAD_SHARE or not valid:
        raise CollectionError(f"{summary}, at most {_MAX_BAD_SHARE:.0%} are accepted; correct or remove them: {quoted}")
    if errors:
        logger.warning("%s and skipped: %s", summary, quoted)
