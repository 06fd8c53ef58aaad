"""Training lists: a query, passages in first-stage order, and the relevance of each passage; and their files.

The format of this package is JSONL with one list per line; `scores` of the first stage are optional:

    {"query_id": "7", "query": "how long does a flea live", "instruction": "optional",
     "passages": [{"doc_id": "d1", "text": "A flea lives a year."}, {"doc_id": "d2", "text": "Deserts are dry."}],
     "relevance": [2, 0], "scores": [8.5, 7.1]}

RankGPT, RankZephyr and FIRST published conversations; their identifiers are numbers or letters:

    system     …
    user       … passages … search query: QUERY.
               [1] first passage
               [2] second passage

               Search Query: QUERY. Rank …
    assistant  [2] > [1]

The parser looks for phrases of the three published prompts, and reads several user turns as one text, because RankGPT
gives each passage in a separate turn.

PE-Rank's rows are conversations whose prompts have a mark for each passage. `ranking` counts from 0 or from 1.
`extra_texts` has the passages in the order of the prompt, and may repeat them in the order of `ranking`:

    {"messages_w_content": […], "messages_wo_content": […], "extra_texts": ["first passage", …], "ranking": [2, 0, 1]}

E2Rank's rows have a ranking that counts from 1:

    {"query": "how long does a flea live", "document": ["first passage", …], "ranking": [3, 1, 2], "source": "msmarco"}
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rerank.errors import CollectionError
from rerank.rankers.permutations import parse_permutation
from rerank.readers.candidates import CandidateList, parse_request
from rerank.readers.qrels import Qrel, grades_by_query, with_known_ids
from rerank.readers.rows import BadRow, json_rows
from rerank.types import Passage, Query
from rerank.util.files import atomic_file, report_disk_errors
from rerank.util.validation import plain_words

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: query_id → doc_id → grade.
Grades: TypeAlias = Mapping[str, Mapping[str, int]]

#: Largest accepted share of invalid rows.
_MAX_BAD_SHARE = 0.01
#: Number of invalid lines that an error message quotes.
_QUOTED_LINES = 5
#: Names of the speakers in conversations.
USER, ASSISTANT = {"user", "human"}, {"assistant", "gpt"}
#: Keys of PE-Rank's conversations; the first that a row has is read. Their prompts differ in the passages' texts only.
PE_RANK_KEYS = ("messages_wo_content", "messages_w_content", "messages", "conversations")
#: The mark of a passage in PE-Rank's prompts.
PE_RANK_MARK = "<PLACEHOLDER>"
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
        relevance: a finite number per passage, higher is better. The scale depends on the teacher, so relevance of
            different teachers is comparable by order only.
        scores: scores of the first stage, one per passage; empty if unknown.

    Raises:
        CollectionError: an attribute is not as described, or a text is empty or not valid Unicode.
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
    """The problem if a text has half of a surrogate pair, which JSON can contain and no tokenizer accepts; or None."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        return f"a text is not valid Unicode ({error.reason})"
    return None


def read_lists(path: Path, qrels: Sequence[Qrel] | None = None) -> list[TrainingList]:
    """Reads training lists: one per line, or in one JSON array; see `rerank.readers.rows.json_rows`.

    The formats are recognised by the keys of each row:

    - the format of this package, conversations, and the rows of PE-Rank and of E2Rank, described above;
    - RankLLM requests, whose relevance is taken from `qrels`; an unjudged candidate has grade 0.

    Invalid rows are skipped, and logged with their location and the reason.

    Args:
        qrels: needed for requests only.

    Raises:
        CollectionError: the file cannot be read, a line is not a JSON object, there are no lists, or more than a
            hundredth of the rows are invalid.
    """
    grades, sources = grades_in(path, qrels), set[str]()

    def parse(row: Any, location: str) -> TrainingList:
        item = parse_list(row, location, grades)
        if "document" in row and row.get("source"):
            sources.add(str(row["source"]))
        return item

    lists = read_rows(path, parse, "lists")
    if sources:
        logger.warning(
            "%s names %d sources (%s), to which E2Rank's code gives instructions of their own; here the instruction of "
            "all rows is the training's",
            *(path, len(sources), ", ".join(sorted(sources)[:_QUOTED_LINES])),
        )
    return lists


def read_rows(path: Path, parse: Callable[[Any, str], T], what: str) -> list[T]:
    """Reads the rows of a file. Invalid rows are skipped, and logged with their location and the reason.

    Args:
        parse: (row, its location, such as `lists.jsonl:7`) → item; raises an error if the row is invalid.
        what: the noun for the items in messages, such as "lists".

    Raises:
        CollectionError: see `read_lists`.
    """
    items, errors = list[T](), list[str]()
    for line, row in json_rows(path, lambda row: row):
        location = f"{path.name}:{line}"
        try:
            items.append(parse(row, location))
        except (CollectionError, BadRow) as error:
            errors.append(f"{location}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            errors.append(f"{location}: not in a supported format ({error!r})")
    _check_errors(path, len(items), errors, what)
    return items


def grades_in(path: Path, qrels: Sequence[Qrel] | None) -> Grades | None:
    """The judgements by query, with query_ids and doc_ids matched to those of the requests in a file.

    The file is read only if the ids of the judgements need it, see `with_known_ids`. None without judgements.
    """
    if qrels is None:
        return None

    @cache
    def requests() -> list[CandidateList]:
        found = []
        for _, row in json_rows(path, lambda row: row):
            with suppress(BadRow):  # `read_rows` reports it
                found.append(parse_request(row))
        return found

    return grades_by_query(
        with_known_ids(
            qrels,
            lambda _: {request.query.query_id for request in requests()},
            lambda _: {passage.doc_id for request in requests() for passage in request.candidates},
        )
    )


def with_request_ids(qrels: Sequence[Qrel], requests: Sequence[CandidateList]) -> list[Qrel]:
    """The judgements with query_ids and doc_ids matched to those of the requests, see `with_known_ids`."""
    return with_known_ids(
        qrels,
        lambda _: {request.query.query_id for request in requests},
        lambda _: {passage.doc_id for request in requests for passage in request.candidates},
    )


def graded(lists: Sequence[TrainingList], source: object) -> list[TrainingList]:
    """The lists in which a passage is more relevant than another; nothing is learnt or measured on the others.

    A warning has the number of the lists that are left out.

    Args:
        source: where the lists come from, for messages.

    Raises:
        CollectionError: no list is left.
    """
    kept = [item for item in lists if max(item.relevance) > min(item.relevance)]
    if not kept:
        raise CollectionError(
            f"in none of the {len(lists):,} lists of {source} is a passage more relevant than another; check that the "
            "query_ids and doc_ids of the judgements are in the lists, and what the teacher gave"
        )
    if len(kept) < len(lists):
        left_out = len(lists) - len(kept)
        logger.warning("%s: %d of %d lists are left out: all passages equally relevant", source, left_out, len(lists))
    return kept


def write_lists(path: Path, lists: Iterable[TrainingList]) -> int:
    """Writes lists in this package's format and returns their number. `path` is replaced when all are written.

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


def parse_list(row: Any, location: str, grades: Grades | None) -> TrainingList:
    """The list of a row in any of the formats.

    Args:
        location: file and line of the row; the query_id if the row has none.
        grades: judgements for requests; None if there are none.

    Raises:
        CollectionError, BadRow, ValueError, KeyError, TypeError, AttributeError: the row is in none of the formats.
    """
    if "candidates" in row or "hits" in row:
        if grades is None:
            raise CollectionError(
                "a request has no relevance; give its judgements with --qrels, or make lists of it with "
                "build-lists and a teacher"
            )
        return _from_request(parse_request(row), grades)
    query_id = str(row.get("id", location))
    if is_alignment(row):
        raise CollectionError(
            "a text to restore and no order, as for PE-Rank's alignment; train on it by train-pe-rank --objective align"
        )
    if "extra_texts" in row:
        return _from_pe_rank(row, query_id)
    if "document" in row:
        return _from_e2rank(row, query_id)
    if "conversations" in row or "messages" in row:
        return _from_conversation(row, query_id)
    return _from_row(row)


def is_alignment(row: Any) -> bool:
    """True for a row of PE-Rank's alignment: a conversation about one text, without a ranking."""
    return "extra_texts" in row and "ranking" not in row


def _from_request(request: CandidateList, grades: Grades) -> TrainingList:
    """The list of a request, with first-stage scores if all candidates have one. Raises: CollectionError."""
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
    turns = list(turns_of(row.get("conversations") or row["messages"]))
    prompt = "\n".join(text for speaker, text in turns if speaker in USER)
    answer = next((text for speaker, text in reversed(turns) if speaker in ASSISTANT), "")
    query_line = _query_line(prompt)
    found = _passages(prompt[: query_line.start()])
    relevance = relevance_from_ranking(_ranking(answer, list(found)), len(found))
    passages = tuple(Passage(identifier, text) for identifier, text in found.items())
    return TrainingList(Query(_query(prompt, query_line), query_id), passages, relevance)


def _from_pe_rank(row: Any, query_id: str) -> TrainingList:
    """The list of a row of PE-Rank's training. The position in the prompt is the doc_id.

    Raises:
        CollectionError: ranking, texts and marks do not agree in the number of passages, or there is no query.
        KeyError, TypeError: the row is not one of PE-Rank's.
    """
    texts, n = list(row["extra_texts"]), len(row["ranking"])
    first = min(row["ranking"], default=0)
    ranking = [index - 1 if first == 1 else index for index in row["ranking"]]
    if sorted(ranking) != list(range(n)):
        raise CollectionError(f"ranking {row['ranking']} does not name each of {n} passages once, from 0 or from 1")
    if texts[n:] not in ([], [texts[index] for index in ranking if index < len(texts)]) or len(texts) < n:
        raise CollectionError(
            f"{len(texts)} extra_texts for a ranking of {n}; give {n} of them, or the same {n} again in its order"
        )
    conversation = next((row[key] for key in PE_RANK_KEYS if key in row), ())
    prompt = "\n".join(text for speaker, text in turns_of(conversation) if speaker in USER)
    if (marks := prompt.count(PE_RANK_MARK)) != n:
        raise CollectionError(f"the prompt has {marks} {PE_RANK_MARK}, and the ranking {n} passages")
    passages = tuple(Passage(str(index), text) for index, text in enumerate(texts[:n], start=1))
    query = Query(_query(prompt, _query_line(prompt)), query_id)
    return TrainingList(query, passages, relevance_from_ranking(ranking, n))


def _from_e2rank(row: Any, query_id: str) -> TrainingList:
    """The list of a row of E2Rank's training. The position in the list is the doc_id.

    Raises:
        CollectionError: the ranking names other passages than the row has.
        KeyError, TypeError: the row is not one of E2Rank's.
    """
    passages = tuple(Passage(str(index), text) for index, text in enumerate(row["document"], start=1))
    try:
        relevance = relevance_from_ranking([index - 1 for index in row["ranking"]], len(passages))
    except CollectionError as error:
        raise CollectionError(f"ranking {row['ranking']}, which counts from 1: {error}") from error
    return TrainingList(Query(row["query"], query_id), passages, relevance)


def _query_line(prompt: str) -> re.Match[str]:
    """The last line that begins with "Search Query:". Raises: CollectionError if there is none."""
    query_lines = list(_QUERY_LINE.finditer(prompt))
    if not query_lines:
        raise CollectionError("no line that starts with 'Search Query:' after the passages")
    return query_lines[-1]


def _query(prompt: str, line: re.Match[str]) -> str:
    """The query, which starts on this line and ends before the last instruction; without one, at the line's end."""
    instructions = list(_INSTRUCTION.finditer(prompt, line.start("query")))
    query = prompt[line.start("query") : instructions[-1].start()] if instructions else line["query"].rstrip()
    return " ".join((query if instructions else query.removesuffix(".")).split())


def turns_of(conversation: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """(speaker, text) of each turn. Raises: KeyError when a turn has neither from and value nor role and content."""
    for turn in conversation:
        yield (turn["from"], turn["value"]) if "from" in turn else (turn["role"], turn["content"])


def _passages(text: str) -> dict[str, str]:
    """Identifier → the text between this identifier at the start of a line and the next one."""
    lists = [found for names in (_NUMBERS, list(ascii_uppercase)) if (found := _find_identifiers(text, names))]
    found = min(lists, key=lambda found: found[0][1], default=[])  # a passage may contain a list of the other kind
    end = ("", len(text), len(text))
    return {name: text[start:stop].strip() for (name, _, start), (_, stop, _) in pairwise([*found, end])}


def _find_identifiers(text: str, names: list[str]) -> list[tuple[str, int, int]]:
    """(identifier, start of its bracket, start of its passage) of each name in turn, until one is missing."""
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


def _quoted(errors: Sequence[str]) -> str:
    """The first errors, as "file:line, file:line: reason": lines with the same reason are named together."""
    locations: dict[str, list[str]] = {}
    for error in errors:
        location, _, reason = error.partition(": ")
        locations.setdefault(reason, []).append(location)
    quoted = [
        f"{', '.join(lines[:_QUOTED_LINES])}{', …' * (len(lines) > _QUOTED_LINES)}: {reason}"
        for reason, lines in list(locations.items())[:_QUOTED_LINES]
    ]
    return "; ".join(quoted) + ("; …" if len(locations) > _QUOTED_LINES else "")


def _check_errors(path: Path, valid: int, errors: Sequence[str], what: str) -> None:
    """Logs the invalid rows. Raises: CollectionError when there are too many, or no valid row."""
    if not valid and not errors:
        raise CollectionError(f"{path} holds no {what}")
    share = len(errors) / (valid + len(errors))
    quoted = _quoted(errors)
    summary = f"{path}: {len(errors)} of {valid + len(errors)} {what} are invalid ({share:.1%})"
    if share > _MAX_BAD_SHARE or not valid:
        raise CollectionError(f"{summary}, at most {_MAX_BAD_SHARE:.0%} are accepted; correct or remove them: {quoted}")
    if errors:
        logger.warning("%s and skipped: %s", summary, quoted)
