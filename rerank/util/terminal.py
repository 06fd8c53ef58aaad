"""Texts of others on a terminal: characters that a terminal obeys are shown instead."""

from __future__ import annotations

import logging
import re

#: Control characters but tab and line feed, characters that reverse the direction of writing, and lone surrogates.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with such characters as JSON writes them, such as \\u001b for escape. It stays JSON if it was JSON."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class VisibleFormatter(logging.Formatter):
    """Formats log messages so that what they quote cannot steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
