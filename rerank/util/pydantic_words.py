"""Pydantic's messages, which typer shows too, in words for people who write settings and requests."""

from __future__ import annotations

import re

#: What pydantic says, which speaks of Python → what a colleague would say.
_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in {
        r"^Value error, ": "",
        r"^Input should be a valid (dictionary|mapping).*": "expected an object with named fields",
        r"^Input should be a valid (list|tuple|set|frozenset).*": "expected a list",
        r"^Input should be an instance of (Sequence|list|tuple)$": "expected a list",
        r"^Input should be a valid integer.*": "expected a whole number",
        r"^Input should be a valid number.*": "expected a number",
        r"^Input should be a valid boolean.*": "expected true or false",
        r"^Input should be a valid string.*": "expected a text",
        r"^Input is not a valid path.*": "expected the path of a file or folder",
        r"^Input should be ": "should be ",
        r"^String should match pattern '(.*)'$": r"should have the form \1",
        r"^(\w+) should have (at (?:least|most) \d+ \w+) after validation, not.*": r"should have \2",
        r"^String should have ": "should have ",
        r"^Field required$": "is missing",
        r"^Invalid JSON: ": "this is not JSON: ",
    }.items()
]


def plain_words(message: str) -> str:
    """A message of pydantic as a colleague would say it."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message
