"""Bounds runs of combining characters: Unicode normalisation takes quadratic time in their length."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

#: The longest run of the stream-safe text format (Unicode Standard Annex 15, section 13), and what ends a longer one.
_MOST, _JOINER = 30, "\u034f"


def stream_safe(text: str) -> str:
    """Puts a combining grapheme joiner into runs of more than 30 combining characters, after each 30 of them."""
    return text if text.isascii() else _long_runs().sub(rf"\g<0>{_JOINER}", text)


@cache
def _long_runs() -> re.Pattern[str]:
    combining = "".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1))))
    return re.compile(rf"[{combining}]{{{_MOST}}}(?=[{combining}])")
