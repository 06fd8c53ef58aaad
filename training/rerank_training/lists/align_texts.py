"""Texts of PE-Rank's alignment, and the conversations about them if a file has some.

A row of PE-Rank is a conversation of one prompt and one answer. A mark in the prompt stands for the text's vector:

    {"messages": [{"role": "user", "content": "… <PLACEHOLDER> …"}, {"role": "assistant", "content": "A flea lives …"}],
     "extra_texts": ["A flea lives a year."]}

If a file has training lists instead, their passages are the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel
from rerank_training.lists.training_list import (
    ASSISTANT,
    PE_RANK_KEYS,
    PE_RANK_MARK,
    USER,
    grades_in,
    is_alignment,
    parse_list,
    read_rows,
    turns_of,
)


@dataclass(frozen=True, slots=True)
class AlignTurns:
    """A conversation about a text.

    Attributes:
        before, after: the user's turn, before and after the vector of the text.
        answer: the assistant's turn.
    """

    before: str
    after: str
    answer: str


#: Text → the conversation about it. Without one (None), the text itself is the answer to a prompt of this package.
AlignTexts: TypeAlias = dict[str, AlignTurns | None]


def read_align_texts(path: Path, qrels: Sequence[Qrel] | None = None) -> AlignTexts:
    """Reads the distinct texts of a file, with the last conversation about each.

    Args:
        qrels: see `read_lists`.

    Raises:
        CollectionError: see `read_lists`.
    """

    grades = grades_in(path, qrels)

    def parse(row: Any, location: str) -> AlignTexts:
        if is_alignment(row):
            return _from_conversation(row)
        return dict.fromkeys(passage.text for passage in parse_list(row, location, grades).passages)

    return {text: turns for texts in read_rows(path, parse, "rows") for text, turns in texts.items()}


def _from_conversation(row: Any) -> AlignTexts:
    """Raises: CollectionError if the row has not one text, or its turns are not a prompt and an answer."""
    texts, turns = list(row["extra_texts"]), list(turns_of(next((row[key] for key in PE_RANK_KEYS if key in row), ())))
    if (written := sum(bool(text.strip()) for text in texts)) != 1 or len(texts) != 1:
        raise CollectionError(f"{len(texts)} extra_texts, {written} of them not blank; give one text")
    if len(turns) != 2 or turns[0][0] not in USER or turns[1][0] not in ASSISTANT:
        speakers = ", ".join(speaker for speaker, _ in turns) or "nobody"
        raise CollectionError(f"turns of {speakers}; give one of the user, then one of the assistant")
    (_, prompt), (_, answer) = turns
    if (marks := prompt.count(PE_RANK_MARK)) != 1 or not answer.strip():
        raise CollectionError(f"{marks} {PE_RANK_MARK} in the prompt, or an empty answer; give one mark and an answer")
    before, _, after = prompt.partition(PE_RANK_MARK)
    return {texts[0]: AlignTurns(before, after, answer)}
