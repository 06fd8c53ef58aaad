"""Checks of requests that are the same in the service and in process."""

from __future__ import annotations

import re

from rerank.errors import InvalidRequest

#: Control characters other than tab and line ends, which carry no meaning and can end a string early elsewhere.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def cleaned_query(text: str) -> str:
    """The text of a query without control characters and outer white space. Raises: InvalidRequest if none is left."""
    if not (cleaned := CONTROL.sub(" ", text).strip()):
        raise InvalidRequest("query", "the query is empty; send a character besides white space and control characters")
    return cleaned
