"""Errors of requests whose API is not known, in a form that the clients of all APIs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rerank.errors import InvalidRequest
from rerank.http.dialect import Dialect, Translated
from rerank.http.problem import Problem


class Undecided:
    """A dialect of errors only: theirs have the fields of all dialects.

    Args:
        dialects: the dialects; the fields of the first ones win.
    """

    passages_field = "documents"

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = dialects

    def translate(self, body: Mapping[str, Any]) -> Translated:
        """Raises: InvalidRequest, always."""
        raise InvalidRequest("body", "no API is recognised; send documents (Cohere, Jina), texts (TEI) or candidates")

    def error(self, problem: Problem) -> Mapping[str, Any]:
        merged: dict[str, Any] = {}
        for dialect in reversed(self._dialects):
            merged |= dialect.error(problem)
        return merged
