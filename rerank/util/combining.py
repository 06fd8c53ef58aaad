"""The normal form in which texts are compared and read, with bounded runs of combining characters.

Unicode normalisation takes quadratic time in the length of these runs.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

#: The longest run of combining characters in the stream-safe text format (Unicode Standard Annex 15, section 13).
_MAX_RUN = 30
#: The combining grapheme joiner, which ends a run.
_JOINER = "\u034f"


def stream_safe(text: str) -> str:
    """Inserts a combining grapheme joiner after every 30 combining characters of longer runs."""
    return text if text.isascii() else _long_runs().sub(rf"\g<0>{_JOINER}", text)


def nfc(text: str) -> str:
    """The text in the normal form NFC: a letter and its accent are one character, as in most texts and vocabularies.

    macOS, PDFs and some input methods write two characters (NFD), which look the same. Each text is normalised before
    it is compared with another one or read by a model. Callers get their texts back as they sent them.
    """
    # `is_normalized` takes linear time: it does not look further than the first characters in the wrong order.
    is_normal = text.isascii() or unicodedata.is_normalized("NFC", text)
    return text if is_normal else unicodedata.normalize("NFC", stream_safe(text))


@cache
def _long_runs() -> re.Pattern[str]:
    combining = "".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1))))
    return re.compile(rf"[{combining}]{{{_MAX_RUN}}}(?=[{combining}])")
