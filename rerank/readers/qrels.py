"""Reads relevance judgements (qrels) in the formats of TREC and BEIR, which are recognised by their content.

White space separates the columns of TREC's files, so these files have it percent-encoded in ids.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from rerank.readers.rows import BadRow, distinct, parsed_lines

_FORMS = "TREC's four (query_id, 0, doc_id, relevance), or BEIR's three with tabs between (query-id, corpus-id, score)"

#: Parts of the name that the first column has in a header.
_NAME = re.compile(r"quer|qid|topic", re.IGNORECASE)
_WHITE_SPACE = re.compile(r"\s")
#: The percent codes of all white space; its last character is U+3000.
_CODES = "|".join(quote(char) for char in map(chr, range(0x3001)) if _WHITE_SPACE.match(char))
_ENCODED = re.compile(_CODES, re.IGNORECASE)


#: A function: ids → the ids among them that exist. It may leave out ids without white space or its percent codes.
FindIds: TypeAlias = Callable[[Set[str]], Collection[str]]


class Qrel(NamedTuple):
    """A relevance judgement. The grade is at least 0, see `grade_of`. ir_measures accepts this type."""

    query_id: str
    doc_id: str
    relevance: int


def read_qrels(path: Path) -> list[Qrel]:
    """Reads judgements, one per line, in the format of the first line.

    - TREC: query_id, an unused column, doc_id, relevance, with white space between.
    - BEIR: query_id, doc_id, relevance, with tabs between.

    The first line may be a header, such as "query-id corpus-id score". Tabs at the end of a line are ignored.

    With tabs between the columns, doc_ids may contain spaces, and are read as they are. Otherwise, %20 is a space in an
    id, and the percent codes of other white space are decoded too. `with_known_ids` gives ids the form that queries and
    passages have.

    Raises:
        CollectionError: the file or a line of it cannot be read, or two lines contradict each other; the message names
            the line.
    """
    form = _FileFormat()
    rows = ((number, qrel) for number, qrel in parsed_lines(path, form.qrel) if qrel is not None)
    return list(distinct(path, rows, lambda qrel: qrel[:2], "judgement of query and passage", may_repeat=True))


def with_known_ids(qrels: Sequence[Qrel], find_queries: FindIds, find_passages: FindIds) -> list[Qrel]:
    """The judgements with the ids that queries and passages have, where these differ only by codes of white space.

    An id that exists as it is written stays; see `known_ids`. Call this before comparing judgements with queries and
    passages.

    Args:
        find_queries, find_passages: called only if judged ids have white space or its codes.
    """
    query_ids = _existing_forms((qrel.query_id for qrel in qrels), find_queries)
    doc_ids = _existing_forms((qrel.doc_id for qrel in qrels), find_passages)
    if not query_ids and not doc_ids:
        return list(qrels)
    return [
        Qrel(query_ids.get(query_id, query_id), doc_ids.get(doc_id, doc_id), grade) for query_id, doc_id, grade in qrels
    ]


def _existing_forms(ids: Iterable[str], find: FindIds) -> dict[str, str]:
    """Id with white space or its codes → the form of the id that exists."""
    coded = {id_ for id_ in ids if _WHITE_SPACE.search(id_) or _ENCODED.search(id_)}
    forms = {form for id_ in coded for form in (id_, to_column(id_), from_column(id_))}
    return known_ids(coded, find(forms)) if coded else {}


def grade_of(relevance: float) -> int:
    """The grade of a judgement. A relevance below 0, as for spam, becomes 0: judged and not relevant.

    trec_eval treats such a passage as not judged.
    """
    return max(int(relevance), 0)


def grades_by_query(qrels: Iterable[Qrel]) -> dict[str, dict[str, int]]:
    """query_id → doc_id → grade."""
    grades: dict[str, dict[str, int]] = {}
    for query_id, doc_id, grade in qrels:
        grades.setdefault(query_id, {})[doc_id] = grade
    return grades


class _FileFormat:
    """The format of a file by its first line: the number of columns and their separator."""

    def __init__(self) -> None:
        self._columns = 0
        self._separator: str | None = None  # splits at white space

    def qrel(self, line: str) -> Qrel | None:
        """The judgement in a line; None for the header. Raises: BadRow."""
        is_first, line = not self._columns, line.rstrip()
        if is_first:
            tabs = line.count("\t")
            self._columns, self._separator = (tabs + 1, "\t") if tabs in (2, 3) else (4, None)
        columns = [column.strip() for column in line.split(self._separator)]
        if len(columns) != self._columns:
            raise BadRow(f"has {len(columns)} columns; expected {_FORMS}, in all lines the same")
        query_id, doc_id, relevance = columns[0], columns[-2], columns[-1]
        grade = _number(relevance)
        if is_first and grade is None and (self._columns == 3 or _NAME.search(query_id)) and relevance[:1].isalpha():
            return None
        if not doc_id or len(query_id.split()) != 1:
            raise BadRow(f"has the query_id {reprlib.repr(query_id)} and the doc_id {reprlib.repr(doc_id)}; give both")
        if grade is None or not grade.is_integer():  # 1.0 is a grade, too
            raise BadRow(f"has the relevance {reprlib.repr(relevance)}, which is not a whole number")
        if self._separator is None:
            query_id, doc_id = from_column(query_id), from_column(doc_id)
        return Qrel(query_id, doc_id, grade_of(grade))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def to_column(text: str) -> str:
    """The id as a column: "my file.pdf" becomes my%20file.pdf. Only white space is encoded."""
    return _WHITE_SPACE.sub(lambda found: quote(found[0]), text)


def from_column(column: str) -> str:
    """The id in a column: my%20file.pdf becomes "my file.pdf". Other codes, such as %2F, stay."""
    return _ENCODED.sub(lambda found: unquote(found[0]), column)


def columns_of(line: str, columns: int) -> list[str]:
    """The columns of a line: split at tabs if that gives `columns` columns, otherwise at white space, and decoded."""
    if line.count("\t") == columns - 1:
        return [column.strip() for column in line.split("\t")]
    return [from_column(column) for column in line.split()]


def known_ids(ids: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Id → the known id that differs at most by the encoding of white space; without one, the id itself.

    A known id stays as it is, because some collections have addresses of web pages as ids, which contain %20.
    """
    encoded = {to_column(doc_id): doc_id for doc_id in known}
    return {id_: id_ if id_ in known else encoded.get(to_column(id_), id_) for id_ in ids}
