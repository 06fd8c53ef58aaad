"""Ids in the columns of TREC files, which white space separates: white space in an id is percent-encoded there."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import quote, unquote

_WHITE_SPACE = re.compile(r"\s")
#: The codes of all white space, which ends with U+3000.
_CODES = "|".join(quote(char) for char in map(chr, range(0x3001)) if _WHITE_SPACE.match(char))
_ENCODED = re.compile(_CODES, re.IGNORECASE)


def to_column(text: str) -> str:
    """The id as a column: "my file.pdf" becomes my%20file.pdf. Only white space is encoded."""
    return _WHITE_SPACE.sub(lambda found: quote(found[0]), text)


def from_column(column: str) -> str:
    """The id in a column: my%20file.pdf becomes "my file.pdf". Other codes, such as %2F, stay."""
    return _ENCODED.sub(lambda found: unquote(found[0]), column)


def columns_of(line: str, columns: int) -> list[str]:
    """The columns of a line: split at tabs if that gives `columns` of them, else at white space and decoded."""
    if line.count("\t") == columns - 1:
        return [column.strip() for column in line.split("\t")]
    return [from_column(column) for column in line.split()]


def known_ids(ids: Collection[str], known: Collection[str]) -> dict[str, str]:
    """The known id that each id means, whichever of the two has its white space encoded; else the id itself.

    A known id always means itself: addresses of web pages, which are ids in some collections, hold %20.
    """
    encoded = {to_column(doc_id): doc_id for doc_id in known}
    return {id_: id_ if id_ in known else encoded.get(to_column(id_), id_) for id_ in ids}
