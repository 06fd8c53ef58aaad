"""The token ids of a prompt, put together from pieces: its passages, and what stands between them.

A passage is tokenised once, however many prompts it comes to stand in. Tokens may reach over the seam between two
pieces ("." and a line end are one token of Llama-3), so white space counts as part of the passage that it touches, and
every piece is tokenised between its neighbours' text: if it does not come apart from them there, it has no ids of its
own, and the prompt must be tokenised whole. The ids are the same either way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias, cast

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

Ids: TypeAlias = tuple[int, ...]

_CORE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
#: So much of what follows a passage shows whether a token reaches over the seam.
_RIGHT_CHARS = 8
#: A passage that stands for any other.
ANY = "any"


@dataclass(frozen=True, slots=True)
class Place:
    """What surrounds a passage in a prompt: the end of one text, white space twice, the beginning of another."""

    left: str
    before: str
    after: str
    right: str


def places_in(parts: Sequence[str]) -> tuple[Place, ...]:
    """The n places of passages between the n + 1 parts of a prompt."""
    spaces = [match.groups() for part in parts if (match := _CORE.fullmatch(part))]
    return tuple(
        Place(left[-1:], before, after, right[:_RIGHT_CHARS])
        for (_, left, before), (after, right, _) in pairwise(spaces)
    )


class SegmentTokenizer:
    """Tokenises prompts and their pieces. No special tokens are added; those that a text names are read as such.

    Works on a copy of the tokenizer that is set up once, so that several threads may use it: one that somebody sets up
    anew while it is in use raises "Already borrowed".
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = Tokenizer.from_str(cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer.to_str())
        self._backend.encode_special_tokens = False
        self._backend.no_truncation()
        self._backend.no_padding()
        self.passage = lru_cache(maxsize=4096)(self._passage)

    def ids(self, text: str) -> list[int]:
        return self._encoded([text])[0]

    def ends(self, text: str) -> Ids:
        """Where in the text each of its tokens ends."""
        return tuple(end for _, end in self._backend.encode(text, add_special_tokens=False).offsets)

    def passages(self, texts: Sequence[str], place: Place) -> list[Ids | None]:
        """The ids that each text has in its place, white space included; None where a token reaches further."""
        anchor = ANY + place.after
        left, anchor_ids, with_right = self._encoded([place.left, anchor, anchor + place.right])
        right = with_right[len(anchor_ids) :]
        around = f"{place.left}{place.before}", f"{place.after}{place.right}"
        return [_inside(ids, left, right) for ids in self._encoded([text.join(around) for text in texts])]

    def between(self, parts: Sequence[str], places: Sequence[Place]) -> list[Ids] | None:
        """The ids of the parts behind the first, without the white space of the passages; None if they have none."""
        anchors = [ANY + place.after for place in places]
        ends = [len(part) - len(place.before) for part, place in zip(parts[1:], places[1:], strict=False)]
        texts = [
            part[len(place.after) : end] for part, place, end in zip(parts[1:], places, [*ends, None], strict=True)
        ]
        alone = self._encoded(anchors)
        behind = self._encoded([anchor + text for anchor, text in zip(anchors, texts, strict=True)])
        found = [_inside(ids, anchor, []) for ids, anchor in zip(behind, alone, strict=True)]
        return None if None in found else cast(list[Ids], found)

    def _passage(self, text: str, place: Place) -> Ids | None:
        return self.passages([text], place)[0]

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """In parallel, and without the offsets that transformers' own call computes beside the ids."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def _inside(ids: list[int], left: list[int], right: list[int]) -> Ids | None:
    """What stands between two ends; None if the ids do not begin and end like this."""
    end = len(ids) - len(right)
    matches = end >= len(left) and ids[: len(left)] == left and ids[end:] == right
    return tuple(ids[len(left) : end]) if matches else None
