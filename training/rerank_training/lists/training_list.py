"""Training lists: a query, passages in first-stage order, and the relevance of each passage; and their files.

Our own format is JSONL with one list per line; `scores` of the first stage are optional:

    {"query_id": "7", "query": "how long does a flea live", "instruction": "optional",
     "passages": [{"doc_id": "d1", "text": "A flea lives a year."}, {"doc_id": "d2", "text": "Deserts are dry."}],
     "relevance": [2, 0], "scores": [8.5, 7.1]}

Conversations are published for RankGPT, RankZephyr and FIRST; their identifiers are numbers or letters:

    system     …
    user       … passages … search query: QUERY.
               [1] first passage
               [2] second passage

               Search Query: QUERY. Rank …
    assistant  [2] > [1]

The parser looks for phrases of the three published prompts, and reads several user turns as one text, because RankGPT
gives each passage in a separate turn.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rerank.errors import CollectionError
from rerank.rankers.permutations import parse_permutation
from rerank.readers.candidates import CandidateList, parse_request
from rerank.readers.rows import BadRow, json_rows
from rerank.types import Passage, Query
from rerank.util.files import atomic_file, report_disk_errors
from rerank.util.validation import plain_words

logger = logging.getLogger(__name__)

#: query_id → doc_id → grade.
Grades: TypeAlias = Mapping[str, Mapping[str, int]]

#: Largest accepted share of invalid rows.
_MAX_BAD_SHARE = 0.01
#: Number of invalid lines that an error message quotes.
_QUOTED_LINES = 5
_USER, _ASSISTANT = {"user", "human"}, {"assistant", "gpt"}
#: No published list is longer than 100 passages. FIRST's letters end at Z.
_NUMBERS = [str(number) for number in range(1, 101)]
_QUERY_LINE = re.compile(r"^\s*search query: *(?P<query>.+)$", re.IGNORECASE | re.MULTILINE)
#: The text after the query in the published prompts: "Rank the 20 passages above …".
_INSTRUCTION = re.compile(r"\.?\s*\bRank the \d+\b")


@dataclass(frozen=True, slots=True)
class TrainingList:
    """One training example of a ranker.

    Attributes:
        passages: two or more with distinct doc_ids, in first-stage order.
        relevance: a finite number per passage, higher is better. Its scale depends on the teacher, so only the order of
            unequal numbers is comparable between teachers.
        scores: of the first stage, one per passage; empty if they are not known.

    Raises:
        CollectionError: one of these conditions is not met, or a text is empty or not valid Unicode.
    """

    query: Query
    passages: tuple[Passage, ...]
    relevance: tuple[float, ...]
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise CollectionError(problem)

    def select(self, positions: Sequence[int]) -> TrainingList:
        """The list with only the passages at these positions, in this order."""
        return TrainingList(
            self.query,
            tuple(self.passages[position] for position in positions),
            tuple(self.relevance[position] for position in positions),
            tuple(self.scores[position] for position in positions) if self.scores else (),
        )


def relevance_from_ranking(ranking: Sequence[int], n: int) -> tuple[float, ...]:
    """Relevance of n passages from a ranking: n for the first passage, n - 1 for the second, and so on.

    Args:
        ranking: positions in 0 … n - 1, best first. It may end early; the passages that it does not name get 0.

    Raises:
        CollectionError: the ranking is empty, or names a position twice or one outside the list.
    """
    if not ranking or len(set(ranking)) != len(ranking) or not all(0 <= position < n for position in ranking):
        raise CollectionError(f"ranking {list(ranking)} does not name passages 0 to {n - 1}, each at most once")
    relevance = [0.0] * n
    for rank, position in enumerate(ranking):
        relevance[position] = float(n - rank)
    return tuple(relevance)


def _problem(item: TrainingList) -> str | None:
    """The first condition that the list does not meet, as an error message; None when it meets all."""
    n, doc_ids = len(item.passages), {passage.doc_id for passage in item.passages}
    if n < 2:
        return f"{n} passages; a list needs two or more"
    if len(doc_ids) < n:
        return f"{n} passages with {len(doc_ids)} distinct doc_ids"
    if len(item.relevance) != n:
        return f"{len(item.relevance)} relevances for {n} passages"
    if not_finite := [value for value in item.relevance if not math.isfinite(value)]:
        return f"relevance {not_finite[0]} is not finite"
    if item.scores and len(item.scores) != n:
        return f"{len(item.scores)} scores for {n} passages"
    if not item.query.text.strip():
        return "the query is empty"
    for passage in item.passages:
        if not passage.text.strip():
            return f"passage {passage.doc_id!r} is empty"
    return _encoding_problem([item.query.text, *(passage.text for passage in item.passages)])


def _encoding_problem(texts: Iterable[str]) -> str | None:
    """JSON can contain half of a surrogate pair, which no tokenizer accepts."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        return f"a text is not valid Unicode ({error.reason})"
    return None


def read_lists(path: Path, grades: Grades | None = None) -> list[TrainingList]:
    """Reads training lists: one per line, or in one JSON array; see `rerank.readers.rows.json_rows`.

    Three formats are recognised by the keys of each row:

    - our own, described above;
    - conversations, described above;
    - RankLLM requests, whose relevance is taken from `grades`; an unjudged candidate has grade 0.

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
        return _from_request(parse_request(row), grades)
    if "conversations" in row or "messages" in row:
        return _from_conversation(row, str(row.get("id", location)))
    return _from_row(row)


def _from_request(request: CandidateList, grades: Grades) -> TrainingList:
    """It has the scores of the candidates if all of them have one."""
    query_id, passages = request.query.query_id, request.candidates
    if query_id not in grades:
        raise CollectionError(f"no judgement for query {query_id!r}")
    relevance = tuple(float(grades[query_id].get(passage.doc_id, 0)) for passage in passages)
    scores = [passage.score for passage in passages if passage.score is not None]
    return TrainingList(request.query, passages, relevance, tuple(scores) if len(scores) == len(passages) else ())


def _from_conversation(row: Any, query_id: str) -> TrainingList:
    """The list of turns in `conversations` (keys from, value) or `messages` (keys role, content).

    Identifiers become doc_ids, because the published format has no others.

    Raises:
        CollectionError: there is no query, or the answer repeats an identifier or names one that has no passage.
        KeyError, TypeError: the row is not a conversation.
    """
    turns = list(_turns(row))
    prompt = "\n".join(text for speaker, text in turns if speaker in _USER)
    answer = next((text for speaker, text in reversed(turns) if speaker in _ASSISTANT), "")
    query_lines = list(_QUERY_LINE.finditer(prompt))
    if not query_lines:
        raise CollectionError("no line that starts with 'Search Query:' after the passages")
    found = _passages(prompt[: query_lines[-1].start()])
    relevance = relevance_from_ranking(_ranking(answer, list(found)), len(found))
    passages = tuple(Passage(identifier, text) for identifier, text in found.items())
    return TrainingList(Query(_query(prompt, query_lines[-1]), query_id), passages, relevance)


def _query(prompt: str, line: re.Match[str]) -> str:
    """The query that a line begins: up to the last instruction, on that line or a later one, else the line."""
    instructions = list(_INSTRUCTION.finditer(prompt, line.start("query")))
    query = prompt[line.start("query") : instructions[-1].start()] if instructions else line["query"].rstrip()
    return " ".join((query if instructions else query.removesuffix(".")).split())


def _turns(row: Any) -> Iterator[tuple[str, str]]:
    """(speaker, text) of each turn."""
    for turn in row.get("conversations") or row["messages"]:
        yield (turn["from"], turn["value"]) if "from" in turn else (turn["role"], turn["content"])


def _passages(text: str) -> dict[str, str]:
    """Identifier → the text between this identifier at the start of a line and the next one."""
    lists = [found for names in (_NUMBERS, list(ascii_uppercase)) if (found := _find_identifiers(text, names))]
    found = min(lists, key=lambda found: found[0][1], default=[])  # a passage may contain a list of the other kind
    end = ("", len(text), len(text))
    return {name: text[start:stop].strip() for (name, _, start), (_, stop, _) in pairwise([*found, end])}


def _find_identifiers(text: str, names: list[str]) -> list[tuple[str, int, int]]:
    """(identifier, start of its bracket, start of its passage), each after the last one, until one is missing."""
    found: list[tuple[str, int, int]] = []
    for name in names:
        match = re.compile(rf"^\[{name}\]\s", re.MULTILINE).search(text, found[-1][2] if found else 0)
        if match is None:
            break
        found.append((name, match.start(), match.end()))
    return found


def _ranking(answer: str, names: list[str]) -> tuple[int, ...]:
    parsed = parse_permutation(answer, names)
    if parsed.repeated or parsed.unknown:
        raise CollectionError(
            f"the answer repeats {parsed.repeated} identifiers and names {parsed.unknown} that no passage has"
        )
    return parsed.permutation[: len(names) - parsed.missing]


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
